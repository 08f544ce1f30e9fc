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

#: a property: its name, and a digest where it is a pattern.
Fact = tuple[str, str]
Facts = frozenset[Fact]

#: the scales of the blocks of "magnitudes" are log-uniform between these.
SMALLEST_SCALE, LARGEST_SCALE = 1e-2, 1e2
_MAX_BLOCKS = 256
#: places along the batch that are shuffled one by one.
_SHUFFLED = 1 << 22

_SAID = {
    "boolean": "is boolean",
    "binary": "holds only 0 and 1",
    "in_unit": "lies in [0, 1]",
    "in_signed_unit": "lies in [-1, 1]",
    "non_negative": "is non-negative",
    "rows_sum_to_one": "has rows that sum to 1",
    "sorted": "is sorted along its last dimension",
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
        new = change(tensor, keep, generator)
        if new is None:
            continue
        if new is not tensor:
            tensor.copy_(new)
            del new
        broken = keep - facts(tensor)
        if broken:
            tensor.copy_(drawn()[index])
            reasons.append(f"{kind}: input tensor {index} {' and '.join(_SAID[name] for name, _ in sorted(broken))}")
        changed = changed or not broken
    return Variant(changed, tuple(reasons) if changed or reasons else (f"{kind}: nothing to change",))


def _times_blocks(tensor: Any, factors: Any) -> Any:
    """Multiplies a tensor's blocks of equal length (the last may be shorter) by their own factors. A contiguous tensor
    changes in place and needs no temporary of its size."""
    tensor = tensor.contiguous()
    flat, length = tensor.view(-1), math.ceil(tensor.numel() / factors.numel())
    whole, factors = flat.numel() // length, factors.to(tensor.device, tensor.dtype)
    flat[: whole * length].view(whole, length).mul_(factors[:whole, None])
    if whole * length < flat.numel():
        flat[whole * length :].mul_(factors[whole])
    return tensor


def _blocks(tensor: Any) -> int:
    elements: int = tensor.numel()
    return max(1, min(_MAX_BLOCKS, elements // 4))


def _magnitudes(tensor: Any, keep: Facts, generator: Any) -> Any | None:
    if not tensor.is_floating_point() or tensor.numel() < 8:
        return None
    names = {name for name, _ in keep}
    largest = 1.0 if names & {"in_unit", "in_signed_unit"} else LARGEST_SCALE
    low, high = math.log(SMALLEST_SCALE), math.log(largest)
    scales = torch.exp(low + (high - low) * torch.rand(_blocks(tensor), generator=generator))
    return _times_blocks(tensor, scales)


def _signs(tensor: Any, keep: Facts, generator: Any) -> Any | None:
    """Makes one half of the blocks |x| and the other -|x|, so that means are far from zero."""
    if not tensor.is_floating_point() or tensor.numel() < 8:
        return None
    signs = torch.randint(0, 2, (_blocks(tensor),), generator=generator) * 2 - 1
    return _times_blocks(tensor.abs_(), signs)


def _permuted(tensor: Any, keep: Facts, generator: Any) -> Any | None:
    dimension = next((d for d, size in enumerate(tensor.shape[:2]) if size > 1), None)
    if dimension is None:
        return None
    return tensor.index_select(dimension, _order(tensor.shape[dimension], generator, tensor.device))


def _order(count: int, generator: Any, device: Any) -> Any:
    """Returns a permutation. A long one is affine and computed where it is used, since shuffling 200 million places on
    the host takes ten seconds."""
    if count <= _SHUFFLED:
        return torch.randperm(count, generator=generator).to(device)
    # Neighbours land far from each other. The factor is coprime, so each place occurs once.
    step = int(torch.randint(count // 4, count // 2, (), generator=generator))
    while math.gcd(step, count) != 1:
        step += 1
    start = int(torch.randint(count, (), generator=generator))
    # Below 2**32 places, all products fit into int64.
    return torch.arange(count, device=device).mul_(step).add_(start).remainder_(count)


def _scaled(scale: float) -> Callable[[Any, Facts, Any], Any | None]:
    """Scales every element of a tensor by its own factor. Values that are bound to a range only become smaller."""

    def change(tensor: Any, keep: Facts, generator: Any) -> Any | None:
        bound = {name for name, _ in keep} & {"in_unit", "in_signed_unit"}
        if not tensor.is_floating_point() or (bound and scale > 1):
            return None
        return tensor.mul_(scale)

    return change


#: the kinds: mixed magnitudes in one tensor, sign changes, another order along the batch (integers too).
KINDS: dict[str, Callable[[Any, Facts, Any], Any | None]] = {
    "magnitudes": _magnitudes,
    "signs": _signs,
    "permuted": _permuted,
}
#: additional kinds of `JudgeOptions.variants == "wide"`: whole inputs far from the scale of the task's draws.
WIDE: dict[str, Callable[[Any, Facts, Any], Any | None]] = {"large": _scaled(1e4), "small": _scaled(1e-4)}
