"""Changes a drawn tensor, in place, at secret places: values that users have and benchmarks don't draw.

Most places keep what was drawn, and those that change are secret, so a look at a few values doesn't tell a changed
tensor from a drawn one. A change takes a contiguous tensor, the names of the properties that the task promises of it,
and a secret generator on the CPU. It returns whether it changed anything. None needs a temporary of the tensor's size,
but for a permutation and for sorted integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import torch

from cuda_agent.workers.buffers import pieces

Change = Callable[[Any, Set[str], Any], bool]

#: the scales of the blocks of "magnitudes" are log-uniform between these.
SMALLEST_SCALE, LARGEST_SCALE = 1e-2, 1e2
#: the largest scale of one-sided values.
_ONE_SIDED = 30.0
#: the fewest elements that hold several blocks or runs.
_FEW = 8
_MAX_BLOCKS = 256
_MAX_RUNS = 16
#: the longest run that is sorted.
_SORTED = 1 << 16
#: elements that single changes touch.
_TOUCHED = 8
#: places along the batch that are shuffled one by one.
_SHUFFLED = 1 << 22
#: its exponential overflows in float32.
_EXTREME = 100.0
#: a zero with a sign, and a denormal number, which kernels for a GPU may flush.
_TINY = (-0.0, 1e-39)

_NUMBERS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
_UNIT = frozenset({"in_unit", "in_signed_unit"})
_ONE_SIGN = frozenset({"in_unit", "non_negative"})


def magnitudes(tensor: Any, names: Set[str], generator: Any) -> bool:
    """Gives each of up to 256 blocks its own scale."""
    if not _has_many_numbers(tensor):
        return False
    flat, count = tensor.view(-1), min(_MAX_BLOCKS, tensor.numel() // 4)
    scales = _scales(SMALLEST_SCALE, 1.0 if names & _UNIT else LARGEST_SCALE, count, generator)
    length = math.ceil(flat.numel() / count)
    whole, scales = flat.numel() // length, scales.to(tensor.device, tensor.dtype)
    flat[: whole * length].view(whole, length).mul_(scales[:whole, None])
    if whole * length < flat.numel():
        flat[whole * length :].mul_(scales[whole])
    return True


def signs(tensor: Any, names: Set[str], generator: Any) -> bool:
    """Makes long runs along every axis one-sided, so that means are far from zero and gates stay open or shut. The
    tensor is cut along one axis. The values of each part have one sign and scale in each section of another axis. One
    tensor of four has one sign and scale as a whole."""
    axes = [axis for axis, size in enumerate(tensor.shape) if size > 1]
    if not _has_many_numbers(tensor) or "in_unit" in names or not axes:
        return False
    axes = [axes[place] for place in torch.randperm(len(axes), generator=generator).tolist()]
    largest = 1.0 if names & _UNIT else _ONE_SIDED
    if _below(4, generator) == 0:
        tensor.abs_().mul_(_sign(names, generator) * float(_scales(1.0, largest, 1, generator)))
        return True
    for axis, part in zip(axes, tensor.tensor_split(len(axes), dim=axes[0]), strict=True):
        size = part.shape[axis]
        if size == 0:
            continue
        count = min(size, 2 + _below(7, generator))
        # Both extremes occur.
        values = torch.tensor([1.0, -1.0] * 4)[:count] * _scales(1.0, largest, count, generator)
        values[:2] = torch.tensor([largest, -largest])[:count]
        values = values.abs() if names & _ONE_SIGN else values
        values = values[torch.randperm(count, generator=generator)]
        sections = torch.randint(count, (size,), generator=generator).sort().values
        shape = [size if dim == axis else 1 for dim in range(part.dim())]
        part.abs_().mul_(values[sections].to(tensor.device, tensor.dtype).view(shape))
    return True


def runs(tensor: Any, names: Set[str], generator: Any) -> bool:
    """Makes runs constant, sorted, repeated or zero, or far larger (smaller where values are bound to a range).
    Integers become skewed: one or two values take over many places. Rows of a mask become full."""
    if _is_mask(tensor, names):
        return _rows(tensor, 1, generator)
    if tensor.dtype in _INTEGERS:
        return _skew(tensor, names, generator)
    if not _has_many_numbers(tensor):
        return False
    for run in _runs(tensor, 1 / 2, generator):
        kind, half = _below(8, generator), run.numel() // 2
        if kind == 0:
            run.copy_(run[:1].clone().expand_as(run))
        elif kind == 1 and run.numel() <= _SORTED:
            run.copy_(run.sort().values)
        elif kind == 2 and half:
            run[half : 2 * half].copy_(run[:half])
        elif kind <= 4:
            run.fill_(_sign(names, generator) * 0.0)
        else:
            scale = float(_scales(4.0, LARGEST_SCALE, 1, generator))
            run.mul_(_sign(names, generator) * (1 / scale if names & _UNIT else scale))
    return True


def special(tensor: Any, names: Set[str], generator: Any) -> bool:
    """Writes a few infinities, and what `extremes` writes."""
    if not extremes(tensor, names, generator):
        return False
    _write(tensor, names, (math.inf, -math.inf), generator)
    return True


def extremes(tensor: Any, names: Set[str], generator: Any) -> bool:
    """Writes a few negative zeros and denormal numbers where values aren't bound to a range, and makes the first or the
    last value of a few rows so extreme that its exponential overflows. Rows of a mask become empty."""
    if _is_mask(tensor, names):
        return _rows(tensor, 0, generator)
    if not _write(tensor, names, _TINY[: len(_TINY) - tensor.is_cuda], generator):
        return False
    rows = tensor.view(-1, tensor.shape[-1])
    for row in torch.randint(len(rows), (min(_TOUCHED, len(rows) // 2),), generator=generator).tolist():
        rows[row, -_below(2, generator)] = _EXTREME * (1 - 2 * _below(2, generator))
    return True


def nan(tensor: Any, names: Set[str], generator: Any) -> bool:
    """Writes a few NaN where values aren't bound to a range."""
    return _write(tensor, names, (math.nan,), generator)


def _write(tensor: Any, names: Set[str], values: Sequence[float], generator: Any) -> bool:
    if not _has_many_numbers(tensor) or names - {"finite"}:
        return False
    flat = tensor.view(-1)
    for value in values:
        for place in torch.randint(flat.numel(), (1 + _below(_TOUCHED // 2, generator),), generator=generator).tolist():
            flat[place] = value
    return True


def permuted(tensor: Any, names: Set[str], generator: Any) -> bool:
    """Changes the order along the batch."""
    dimension = next((d for d, size in enumerate(tensor.shape[:2]) if size > 1), None)
    if dimension is None:
        return False
    tensor.copy_(tensor.index_select(dimension, _order(tensor.shape[dimension], generator, tensor.device)))
    return True


def changed_elements(tensor: Any, names: Set[str], generator: Any) -> bool:
    """Gives a few single elements the value of others, with the other sign where the task has both. So an answer that
    was kept for a sample of the inputs is stale."""
    flat = tensor.view(-1)
    if flat.numel() < 2:
        return False
    pairs = torch.randint(flat.numel(), (_TOUCHED, 2), generator=generator).tolist()
    for place, other in pairs:
        if tensor.dtype is torch.bool:
            flat[place] = ~flat[place]
        elif "distinct" in names:
            flat[[place, other]] = flat[[other, place]]
        elif tensor.dtype in _NUMBERS and not names & _ONE_SIGN:
            flat[place] = -flat[other]
        else:
            flat[place] = flat[other]
    return True


def scaled(scale: float) -> Change:
    """Returns the change that scales a whole tensor. Values that are bound to a range only become smaller."""

    def change(tensor: Any, names: Set[str], generator: Any) -> bool:
        if tensor.dtype not in _NUMBERS or (names & _UNIT and scale > 1):
            return False
        tensor.mul_(scale)
        return True

    return change


def _sign(names: Set[str], generator: Any) -> float:
    return 1.0 if names & _ONE_SIGN else 1.0 - 2.0 * _below(2, generator)


def _has_many_numbers(tensor: Any) -> bool:
    return tensor.dtype in _NUMBERS and tensor.numel() >= _FEW


def _is_mask(tensor: Any, names: Set[str]) -> bool:
    return tensor.numel() >= _FEW and (tensor.dtype is torch.bool or "binary" in names)


def _skew(tensor: Any, names: Set[str], generator: Any) -> bool:
    if "distinct" in names or tensor.numel() < _FEW:
        return False
    flat, ends = tensor.view(-1), (tensor[..., :1].clone(), tensor[..., -1:].clone())
    hot = flat[torch.randint(flat.numel(), (1 + _below(2, generator),), generator=generator).to(flat.device)].clone()
    share = 0.5 + 0.5 * float(torch.rand((), generator=generator))
    on_device = torch.Generator(flat.device).manual_seed(_below(2**62, generator))
    least, most = (bound.clone() for bound in flat.aminmax())
    for part in pieces(tensor):
        for value in hot:
            chance = torch.rand(part.numel(), generator=on_device, device=part.device)
            part.masked_fill_(chance < share / len(hot), value)
    for bound in (least, most):
        flat[_below(flat.numel(), generator)] = bound
    if "sorted" in names:
        tensor.copy_(tensor.sort(-1).values)
        tensor[..., :1], tensor[..., -1:] = ends
    return True


def _rows(tensor: Any, value: int, generator: Any) -> bool:
    """Fills a few rows of a mask, and a few runs of it."""
    rows = tensor.view(-1, tensor.shape[-1])
    for row in torch.randint(len(rows), (1 + _below(_TOUCHED, generator),), generator=generator).tolist():
        rows[row] = value
    for run in _runs(tensor, 1 / 4, generator):
        run.fill_(value)
    return True


def _runs(tensor: Any, share: float, generator: Any) -> Iterator[Any]:
    """Yields runs of a flattened tensor at secret places, with lengths over several magnitudes. All of them together
    are at most this share of it."""
    flat, count = tensor.view(-1), 1 + _below(_MAX_RUNS, generator)
    longest = max(1.0, flat.numel() * share / count)
    for length in _scales(1.0, longest, count, generator).long().tolist():
        begin = _below(flat.numel() - length + 1, generator)
        yield flat[begin : begin + length]


def _scales(least: float, largest: float, count: int, generator: Any) -> Any:
    """Returns so many log-uniform numbers."""
    low, high = math.log(least), math.log(largest)
    return torch.exp(low + (high - low) * torch.rand(count, generator=generator))


def _below(limit: int, generator: Any) -> int:
    return int(torch.randint(limit, (), generator=generator))


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
