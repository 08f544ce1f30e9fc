"""Tries and times many settings of one program inside one build, for information in a search; never a verdict.

Timing works by successive halving. Every setting gets one or two calls (a plainly slow one gets one). Then the faster
half, or those that may still be the fastest where these are fewer, get more, and so on. Settings take turns in a random
order, and only what was measured side by side is compared: a GPU that warms up slows by a tenth (H200, products at
its power limit), which would favour the first setting. A setting whose result differs from the first working one's by
more than 1 % is out, so that a broken tunable never wins.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from cuda_agent.core.intervals import median
from cuda_agent.workers.buffers import pieces
from cuda_agent.workers.inside.failures import is_out_of_memory
from cuda_agent.workers.inside.runner import OutputError, Program, Runner, Slot, check_fit, output_tensors
from cuda_agent.workers.requests.timed import ScreenConfigs, ScreenTimes, TriedConfigs, TryConfigs

#: relative L2 distance from the first setting's result above which a setting counts as broken.
MAX_DISTANCE = 1e-2
#: evenly spread blocks of a larger output that are compared, since all of it would take longer than the call.
BLOCKS, BLOCK = 1 << 16, 256
FINALISTS = 4
FINAL_SAMPLES = 15
#: multiples of the fastest time above which a setting can't win: after a first look, and after a few samples.
HOPELESS, BEHIND = 1.5, 1.2


def attempt(
    runner: Runner,
    program: Program,
    set_config: Callable[[Mapping[str, int]], None],
    slot: Slot,
    request: TryConfigs,
) -> TriedConfigs:
    """Calls each setting once and compares its result with the first working one's. First calls load kernels and choose
    among a library's, which takes longer than all that is timed."""
    end = time.monotonic() + request.budget_s
    found = _Failures(runner)
    reference: list[Any] | None = None
    for index, config in enumerate(request.configs):
        if index and time.monotonic() > end:
            found.reasons[index] = "not tried: the screening budget ended"
            continue
        with found.of(index):
            set_config(config)
            result = _outputs(runner, program, slot)
            if reference is None:
                reference = [t.clone() for t in result]
            elif (reason := difference(result, reference)) is not None:
                found.reasons[index] = reason
            del result
        if found.device_lost:
            untried = range(index + 1, len(request.configs))
            found.reasons |= dict.fromkeys(untried, "not tried: an earlier setting broke the device")
            break
    return TriedConfigs(**found.facts)


def screen(
    runner: Runner,
    program: Program,
    set_config: Callable[[Mapping[str, int]], None],
    slots: Sequence[Slot],
    request: ScreenConfigs,
) -> ScreenTimes:
    """Times each setting over the slots and returns its median. Settings that the budget doesn't reach fail."""
    configs, end = request.configs, time.monotonic() + request.budget_s
    found = _Failures(runner)
    samples: dict[int, list[float]] = {}

    def timed(index: int, turn: int) -> float:
        set_config(configs[index])
        return runner.time_once(program, slots[turn % len(slots)], flush_bytes=request.flush_bytes)

    for index in range(len(configs)):
        if index and time.monotonic() > end:
            found.reasons[index] = "not timed: the screening budget ended"
            continue
        with found.of(index):
            values = [timed(index, 0)]
            if values[0] < HOPELESS * min(map(min, samples.values()), default=math.inf):
                values.append(timed(index, 1))
            samples[index] = values
        if found.device_lost:
            break
    if not found.device_lost:
        samples = _halve(samples, timed, end)
    times = (median(samples[index]) if index in samples else None for index in range(len(configs)))
    return ScreenTimes(latency_us=tuple(times), **found.facts)


class _Failures:
    """Why settings can't be timed, by their places."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.reasons: dict[int, str] = {}
        self.device_lost = self.out_of_memory = False

    @contextmanager
    def of(self, index: int) -> Iterator[None]:
        """Records what a setting raises in this block."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the boundary to a candidate's code
            self.reasons[index] = f"{type(error).__name__}: {error}"[:500]
            self.out_of_memory |= is_out_of_memory(error)
            self.device_lost |= not _is_device_alive(self._runner)

    @property
    def facts(self) -> dict[str, Any]:
        """Returns the fields of an answer."""
        reasons = {str(index): reason for index, reason in self.reasons.items()}
        return {"failures": reasons, "device_lost": self.device_lost, "out_of_memory": self.out_of_memory}


def _halve(first: Mapping[int, list[float]], timed: Callable[[int, int], float], end: float) -> dict[int, list[float]]:
    """Returns the samples of the last stage that each setting took part in. A dropped setting counts as no faster than
    those that stayed. `timed(index, turn)` times a setting."""
    order, result = random.Random(0), dict(first)
    alive = _contenders(first)
    while alive and time.monotonic() < end:
        last = len(alive) <= FINALISTS
        stage: dict[int, list[float]] = {index: [] for index in alive}
        for turn in range(FINAL_SAMPLES if last else 3):
            order.shuffle(alive)
            for index in alive:
                if time.monotonic() > end:
                    break
                stage[index].append(timed(index, turn))
        measured = {index: values for index, values in stage.items() if values}
        result |= measured
        bar = max(map(median, measured.values()), default=0.0)
        result |= {i: [max(median(v), bar)] for i, v in result.items() if i not in measured}
        if last:
            break
        alive = _contenders(measured)[: max(FINALISTS, len(measured) // 2)]
    return result


def _contenders(samples: Mapping[int, list[float]]) -> list[int]:
    """Returns the settings that may still be the fastest, the fastest first."""
    times = {index: median(values) for index, values in samples.items()}
    nearest = BEHIND * min(times.values(), default=0.0)
    return sorted((index for index, time_us in times.items() if time_us <= nearest), key=lambda index: times[index])


def _outputs(runner: Runner, program: Program, slot: Slot) -> list[Any]:
    with torch.no_grad():
        tensors = output_tensors(program(*slot))
    runner.synchronize()
    return tensors


def difference(mine: Sequence[Any], reference: Sequence[Any]) -> str | None:
    """Returns why a result isn't the reference's, or None: tensors, shapes, non-finite places, relative L2 distance
    (floating point) or share of differing elements (others) above 1 %."""
    try:
        check_fit(mine, reference)
    except OutputError as misfit:
        return str(misfit)
    for index, (a, b) in enumerate(zip(mine, reference, strict=True)):
        distance = _distance(*_some(a, b))
        if not distance <= MAX_DISTANCE:
            return f"output {index} differs from the first setting's by {distance:.2g} (relative)"
    return None


def _some(a: Any, b: Any) -> tuple[Any, Any]:
    """Returns blocks at the same places of two large tensors that lie in memory alike and without gaps, else all of
    both."""
    count = a.numel()
    dense = a.stride() == b.stride() and 1 + sum((n - 1) * s for n, s in zip(a.shape, a.stride(), strict=True)) == count
    if count < 2 * BLOCKS * BLOCK or not dense:
        return a, b
    # An odd step, so that it doesn't always meet the same columns. The last block ends where the tensor does.
    apart = (count - BLOCK) // (BLOCKS - 1)
    apart -= 1 - apart % 2
    begin = count - (BLOCKS - 1) * apart - BLOCK
    x, y = (t.as_strided((BLOCKS, BLOCK), (apart, 1), t.storage_offset() + begin) for t in (a, b))
    return x, y


def _distance(a: Any, b: Any) -> float:
    """Returns the relative L2 distance, infinite where non-finite values differ. It is computed in pieces to bound the
    memory."""
    if not a.is_floating_point():
        return float((a != b).float().mean()) if a.numel() else 0.0
    parts = list(zip(pieces(a), pieces(b), strict=True))
    # A non-finite value leaves no finite sum.
    squares = [torch.stack([_squares(x - y), _squares(y)]) for x, y in parts]
    if squares and not bool(torch.stack(squares).isfinite().all()):
        if not all(_same_where_not_finite(x, y) for x, y in parts):
            return float("inf")
        known = ((x.where(y.isfinite(), 0.0).double(), y.where(y.isfinite(), 0.0).double()) for x, y in parts)
        squares = [torch.stack([_squares(x - y), _squares(y)]) for x, y in known]
    apart, norm = torch.stack(squares).sum(0).tolist() if squares else (0.0, 0.0)
    if apart == 0.0:
        return 0.0
    return float((apart / norm) ** 0.5) if norm > 0.0 else float("inf")


def _squares(values: Any) -> Any:
    # Another type than float32 would need a wider copy.
    wide = torch.promote_types(values.dtype, torch.float32)
    return torch.linalg.vector_norm(values, dtype=wide).double().square()


def _same_where_not_finite(x: Any, y: Any) -> bool:
    finite = y.isfinite()
    return bool(torch.equal(x.isfinite(), finite) and torch.equal(x[~finite].nan_to_num(), y[~finite].nan_to_num()))


def _is_device_alive(runner: Runner) -> bool:
    try:
        runner.synchronize()
        if runner.is_cuda:
            torch.ones(1, device=runner.device).add_(1)
            runner.synchronize()
    except RuntimeError:
        return False
    return True
