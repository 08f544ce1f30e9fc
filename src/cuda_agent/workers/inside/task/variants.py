"""Makes variants of drawn inputs, of the same shapes, as users provide them and benchmarks don't.

A fact that holds in every draw of a task (a probability row, a causal mask, sorted offsets) is a property that the task
promises. A variant keeps it, or leaves that tensor unchanged, or is dropped with the reason.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cuda_agent.workers.buffers import pieces
from cuda_agent.workers.inside.task import mixtures
from cuda_agent.workers.inside.task.mixtures import Change
from cuda_agent.workers.requests.reference import CHANGED_ELEMENTS, EXTREMES, NAN, NOT_FINITE, SPECIAL

#: a property: its name, and a digest where it is a pattern.
Fact = tuple[str, str]
Facts = frozenset[Fact]

_SAID = {
    "boolean": "is boolean",
    "binary": "holds only 0 and 1",
    "in_unit": "lies in [0, 1]",
    "in_signed_unit": "lies in [-1, 1]",
    "non_negative": "is non-negative",
    "rows_sum_to_one": "has rows that sum to 1",
    "sorted": "is sorted along its last dimension",
    "ends": "begins and ends with the same values in every draw",
    "distinct": "holds no value twice in a row",
    "symmetric": "is symmetric",
    "finite": "is finite",
    "zeros": "has its zeros always at the same places",
    "infinities": "has its infinities always at the same places",
    "values": "is the same in every draw",
}


@dataclass(frozen=True)
class Variant:
    """Whether any tensor changed, and what stayed and why."""

    is_changed: bool
    reasons: tuple[str, ...] = ()


def properties(draws: Iterable[Sequence[Any]]) -> list[Facts]:
    """Returns for every tensor of the flattened inputs the properties that hold in all draws. It holds one draw at a
    time. A single draw shows no variation, so its values count as a property: give at least two."""
    kept: list[Facts] | None = None
    for tensors in draws:
        found = [facts(tensor) for tensor in tensors]
        kept = found if kept is None else [old & new for old, new in zip(kept, found, strict=True)]
        del tensors
    return kept or []


def facts(tensor: Any) -> Facts:
    """Returns the properties of one tensor."""
    found: set[Fact] = {("values", _digest(tensor))}
    if tensor.numel() == 0:
        return frozenset(found)
    if tensor.dtype is torch.bool:
        return frozenset(found | {("boolean", "")})
    if _is_sorted(tensor):
        found.add(("sorted", ""))
    if not tensor.is_floating_point():
        if ("sorted", "") in found:
            found.add(("ends", _digest(tensor[..., [0, -1]])))
        if not tensor.is_complex() and _is_distinct(tensor):
            found.add(("distinct", ""))
        return frozenset(found)
    low, high = float(tensor.amin()), float(tensor.amax())
    if math.isfinite(low) and math.isfinite(high):
        found.add(("finite", ""))
    else:
        found.add(("infinities", _pattern(~torch.isfinite(tensor))))
    ranges = {"in_unit": low >= 0 and high <= 1, "in_signed_unit": low >= -1 and high <= 1, "non_negative": low >= 0}
    found.update((name, "") for name, holds in ranges.items() if holds)
    # A mask of the whole is made only where it is needed.
    if bool(torch.stack([(part == 0).any() for part in pieces(tensor.flatten())]).any()):
        zeros = tensor == 0
        found.add(("zeros", _pattern(zeros)))
        if bool((zeros | (tensor == 1)).all()):
            found.add(("binary", ""))
    found.update(_matrix_facts(tensor))
    return frozenset(found)


def _is_sorted(tensor: Any) -> bool:
    if not tensor.dim() or tensor.shape[-1] < 3:
        return False
    first = tensor.reshape(-1, tensor.shape[-1])[:1]
    # The first row nearly always decides, without a temporary of the tensor's size.
    return all(bool((rows[..., 1:] >= rows[..., :-1]).all()) for rows in (first, tensor))


def _is_distinct(tensor: Any) -> bool:
    """Whether no row holds a value twice, as in a permutation."""
    rows = tensor.reshape(1, -1) if tensor.dim() < 2 or tensor.shape[-1] == 1 else tensor.reshape(-1, tensor.shape[-1])
    # The first row nearly always decides.
    return all(bool((part.sort(-1).values.diff(dim=-1) != 0).all()) for part in (rows[:1], rows))


def _matrix_facts(tensor: Any) -> set[Fact]:
    found: set[Fact] = set()
    if tensor.dim() and tensor.shape[-1] > 1:
        tolerance = max(1e-4, 4 * torch.finfo(tensor.dtype).eps)
        sums = tensor.sum(dim=-1, dtype=torch.float32)
        if bool(((sums - 1).abs() <= tolerance).all()):
            found.add(("rows_sum_to_one", ""))
    if tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] > 1 and bool((tensor == tensor.mT).all()):
        found.add(("symmetric", ""))
    return found


def _digest(tensor: Any) -> str:
    """Returns a digest that equal values share. Real draws don't collide."""
    flat = tensor.detach().flatten()
    sample = flat[:: max(1, flat.numel() // 256)].to(torch.float64)
    # A sum in another type would copy the whole tensor.
    total = torch.stack([part.double().sum() for part in pieces(flat)]).sum().reshape(1)
    return hashlib.sha256(torch.cat([sample, total]).cpu().numpy().tobytes()).hexdigest()[:16]


def _pattern(mask: Any) -> str:
    """Returns a digest of the places where a mask is set: the sum of their random weights."""
    parts = pieces(mask)
    generator = torch.Generator(mask.device).manual_seed(0)
    weights = torch.rand(parts[0].numel(), generator=generator, dtype=torch.float64, device=mask.device)
    sums = torch.stack([(part * weights[: part.numel()]).sum() for part in parts])
    return hashlib.sha256(sums.cpu().numpy().tobytes()).hexdigest()[:16]


def vary(
    kind: str, tensors: Sequence[Any], kept: Sequence[Facts], seed: int, drawn: Callable[[], Sequence[Any]]
) -> Variant:
    """Changes the tensors, in place, to a variant of `KINDS` or `WIDE`. `drawn` draws them again, for one that loses a
    property by its change."""
    change = KINDS.get(kind) or WIDE[kind]
    reasons: list[str] = []
    changed = False
    for index, (tensor, keep) in enumerate(zip(tensors, kept, strict=True)):
        # All tensors share one order, so that rows that belong together stay together.
        own_seed = seed if kind == "permuted" else seed + 7919 * index
        generator = torch.Generator("cpu").manual_seed(own_seed % 2**63)
        work = tensor.contiguous()
        if not change(work, {name for name, _ in keep}, generator):
            continue
        if work is not tensor:
            tensor.copy_(work)
            del work
        broken = {fact for fact in keep - facts(tensor) if kind not in NOT_FINITE or fact[0] != "finite"}
        if broken:
            tensor.copy_(drawn()[index])
            reasons.append(f"{kind}: input tensor {index} {' and '.join(_SAID[name] for name, _ in sorted(broken))}")
        changed = changed or not broken
    return Variant(changed, tuple(reasons) if changed or reasons else (f"{kind}: nothing to change",))


def usual_kinds(outputs: Iterable[Any]) -> tuple[str, ...]:
    """Returns the kinds of every verification of a task with these outputs. Infinities give NaN, for which kernels may
    answer as they like. Integers don't show that they come from NaN, and complex numbers are compared by equality, so a
    task that returns either gets no infinities."""
    shows_nan = all(tensor.is_floating_point() for tensor in outputs)
    return tuple(kind for kind in KINDS if kind != (EXTREMES if shows_nan else SPECIAL))


#: all kinds that a verification may have.
KINDS: dict[str, Change] = {
    CHANGED_ELEMENTS: mixtures.changed_elements,
    "magnitudes": mixtures.magnitudes,
    "signs": mixtures.signs,
    "runs": mixtures.runs,
    SPECIAL: mixtures.special,
    EXTREMES: mixtures.extremes,
    "permuted": mixtures.permuted,
}
#: additional kinds of `JudgeOptions.variants == "wide"`: whole inputs far from the scale of the task's draws, and NaN.
WIDE: dict[str, Change] = {"large": mixtures.scaled(1e4), "small": mixtures.scaled(1e-4), NAN: mixtures.nan}
