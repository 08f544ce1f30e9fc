"""Runs a program in a worker and times it. The candidate, the baselines and the null program use the same code.

A *program* is a callable of positional inputs; a *slot* is one set of inputs, views on the judge's ring of buffers. The
times of this process are a sensor, not evidence: the judge compares them with its own clock.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cuda_agent.core.errors import TaskError
from cuda_agent.workers.buffers import SMALL_CONTEXT
from cuda_agent.workers.inside.cupti import CuptiUnavailable, busy_ns, record
from cuda_agent.workers.inside.task.pytree import flatten

Program = Callable[..., Any]
Slot = Sequence[Any]
_BLOCKING_SYNC = 4
#: one call's output tensors, flattened in `pytree.flatten`'s order.
Outputs = Sequence[Any]


@dataclass(frozen=True)
class Times:
    """A burst in µs. `event_us` has each call. `waited_us` is the mean of how much longer this process waited until it
    knew that a call had ended. A driver frees what a call gave back during that wait, so some programs make a
    synchronisation long."""

    event_us: list[float]
    waited_us: float


class OutputError(Exception):
    """A program's output doesn't fit the reference's: number of tensors, class, shape or dtype."""


def output_tensors(value: Any) -> list[Any]:
    """Returns the flattened tensors of an output. Raises OutputError when it holds what can't be passed on."""
    try:
        return flatten(value)[1]
    except TaskError as error:
        raise OutputError(error.cause) from None


def check_fit(tensors: Outputs, ring: Outputs) -> None:
    """Raises OutputError unless every tensor has the shape, dtype and device type of its place in the output ring."""
    if len(tensors) != len(ring):
        raise OutputError(f"{len(tensors)} output tensors instead of {len(ring)}")
    for index, (mine, place) in enumerate(zip(tensors, ring, strict=True)):
        if mine.shape != place.shape or mine.dtype != place.dtype or mine.device.type != place.device.type:
            raise OutputError(
                f"output {index} is {tuple(mine.shape)} {mine.dtype} on {mine.device.type} "
                f"instead of {tuple(place.shape)} {place.dtype} on {place.device.type}"
            )


def null_program(fixed: Sequence[Outputs]) -> Program:
    """Returns a program that does nothing: it returns the given tensors, a different set each time, so that copying
    them into the output ring is as cold as copying a real program's."""
    turns = itertools.cycle([tuple(outputs) for outputs in fixed])
    return lambda *_inputs: next(turns)


def lies_otherwise(value: Any, strides: Sequence[Sequence[int]]) -> list[int]:
    """Returns which tensors of an output don't have these strides. Returns none where their number differs or they
    can't be passed on, which is found elsewhere."""
    try:
        tensors = output_tensors(value)
    except OutputError:
        return []
    if len(tensors) != len(strides):
        return []
    return [
        index
        for index, (tensor, wanted) in enumerate(zip(tensors, strides, strict=True))
        if tensor.dim() == len(wanted)
        and any(n > 1 and a != b for n, a, b in zip(tensor.shape, tensor.stride(), wanted, strict=True))
    ]


def laid_out(program: Program, strides: Sequence[Sequence[int]]) -> Program:
    """Returns the program with outputs in these strides. Copying them into that layout is part of its call."""

    def call(*inputs: Any) -> Any:
        value = program(*inputs)
        wrong = lies_otherwise(value, strides)
        if not wrong:
            return value
        tensors = list(output_tensors(value))
        for index in wrong:
            mine = tensors[index]
            place = torch.empty_strided(mine.shape, tuple(strides[index]), dtype=mine.dtype, device=mine.device)
            tensors[index] = place.copy_(mine)
        return tensors

    return call


class Runner:
    """Times programs on one device. On `cuda`, everything goes through the current stream; on `cpu`, the clock is
    `perf_counter_ns` around the call."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.is_cuda = self.device.type == "cuda"
        self._kept: list[Any] = []
        self._collects = False
        self._scratch: Any = None
        runtime = _cuda_runtime() if self.is_cuda else None
        self._reset_persisting = getattr(runtime, "cudaCtxResetPersistingL2Cache", None)

    def warmup(self, program: Program, slots: Sequence[Slot], *, calls: int = 3, seconds: float = 0.0) -> Any:
        """Makes at least `calls` calls over the slots in turn, then more until `seconds` have passed (clocks rise,
        caches of libraries and compilers settle). Returns the last result."""
        end = time.monotonic() + seconds
        done, value = 0, None
        with torch.no_grad():
            for slot in itertools.cycle(slots):
                if done >= calls and time.monotonic() >= end:
                    break
                value = program(*slot)
                done += 1
                self.synchronize()
        return value

    def rouse(self, *, calls: int = 3, flush_bytes: int = 0) -> None:
        """Times nothing a few times, so that a burst's own code is in the core's caches, and the device has this
        process's context."""
        if self.is_cuda:
            for _ in range(calls):
                self._chill(flush_bytes)
                self._between_events(lambda: None)

    def run(
        self, program: Program, slots: Sequence[Slot], *, flush_bytes: int = 0, inputs_at: frozenset[int] = frozenset()
    ) -> Times:
        """Calls the program on each slot from an idle device and times each call.

        For each slot it flushes the L2 cache if requested (by writing `flush_bytes`), synchronises, records an event,
        calls, records an event and synchronises. Outputs are kept until all slots have run, and for `deliver` after
        that: a program that returns the same storage twice shows wrong results, and the inputs may change meanwhile.
        `inputs_at` are the addresses of the inputs' storages; an output that lies in one of them is copied at once.
        Python collects no garbage until `release`, since it would do so while the answer is sent. Raises OutputError
        and the program's own exceptions.
        """
        times: list[float] = []
        waited_us = 0.0
        self._stop_collecting()
        with torch.no_grad():
            for slot in slots:
                self._chill(flush_bytes)
                value, elapsed, waited = self._between_events(partial(program, *slot))
                self._kept.append(value)
                times.append(elapsed)
                waited_us += waited
            self._kept = [
                [t.clone() if t.untyped_storage().data_ptr() in inputs_at else t for t in output_tensors(value)]
                for value in self._kept
            ]
            self.synchronize()
        return Times(times, waited_us / max(1, len(times)))

    def deliver(self, outputs: Sequence[Outputs]) -> None:
        """Copies the last run's outputs into the first places of the output ring. Raises OutputError when they don't
        fit."""
        with torch.no_grad():
            for tensors, ring in zip(self._kept, outputs, strict=False):
                check_fit(tensors, ring)
                for mine, place in zip(tensors, ring, strict=True):
                    place.copy_(mine)
            self.synchronize()

    def _stop_collecting(self) -> None:
        """Prevents garbage collection until `release`. It would be noise inside a timed call, for every program
        alike."""
        self.release()
        self._collects = gc.isenabled()
        gc.disable()

    def release(self) -> None:
        """Frees the last burst's outputs. The judge asks for it outside its clock."""
        self._kept.clear()
        if self._collects:
            self._collects = False
            gc.enable()

    def queue(self, program: Program, slots: Sequence[Slot], calls: int) -> float:
        """Returns µs per call of `calls` calls back to back without synchronisation: the cost of one more call in a
        full queue."""
        turns = itertools.cycle(slots)
        self._stop_collecting()
        with torch.no_grad():
            for _ in range(min(calls, 3)):
                program(*next(turns))
            self.synchronize()

            def burst() -> None:
                for _ in range(calls):
                    program(*next(turns))

            _, elapsed, _ = self._between_events(burst)
        self.release()
        return elapsed / calls

    def busy(self, program: Program, slots: Sequence[Slot], calls: int = 5) -> float | None:
        """Returns µs per call in which at least one kernel or copy ran on the GPU; None where CUPTI isn't available."""
        if not self.is_cuda:
            return None

        def burst() -> None:
            for slot in itertools.islice(itertools.cycle(slots), calls):
                program(*slot)

        try:
            with torch.no_grad():
                spans = record(burst)
        except CuptiUnavailable:
            return None
        return busy_ns(spans) / 1e3 / calls if spans else None

    def peak_memory(self, program: Program, slot: Slot) -> int | None:
        """Returns the device bytes that one call allocates at its peak, its outputs included; None on the CPU."""
        if not self.is_cuda:
            return None
        self.release()
        self.synchronize()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        with torch.no_grad():
            program(*slot)
        self.synchronize()
        return int(torch.cuda.max_memory_allocated(self.device) - before)

    def time_once(self, program: Program, slot: Slot, *, flush_bytes: int = 0) -> float:
        """Returns µs of one call from an idle device, and drops its output."""
        with torch.no_grad():
            self._chill(flush_bytes)
            return self._between_events(lambda: program(*slot))[1]

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def _chill(self, flush_bytes: int) -> None:
        """Moves the program's data out of the L2 cache and lets the device become idle."""
        if flush_bytes:
            if self._scratch is None or self._scratch.numel() < flush_bytes:
                self._scratch = torch.empty(flush_bytes, dtype=torch.uint8, device=self.device)
            self._scratch.zero_()
        self.synchronize()
        if self._reset_persisting is not None:
            self._reset_persisting()

    def _between_events(self, work: Callable[[], Any]) -> tuple[Any, float, float]:
        """Returns (the result of `work`, µs from an idle device to its end, further µs until this process knew of
        that)."""
        if not self.is_cuda:
            start = time.perf_counter_ns()
            value = work()
            return value, (time.perf_counter_ns() - start) / 1e3, 0.0
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start = time.perf_counter_ns()
        begin.record()
        value = work()
        end.record()
        torch.cuda.synchronize(self.device)
        passed_us = (time.perf_counter_ns() - start) / 1e3
        elapsed_us = float(begin.elapsed_time(end)) * 1e3
        return value, elapsed_us, max(0.0, passed_us - elapsed_us)


def share_the_gpu() -> None:
    """Makes the context small, and lets threads of this process that wait for the GPU leave their core to others. Call
    it before the GPU is first used."""
    os.environ.update(SMALL_CONTEXT)
    runtime = _cuda_runtime()
    if runtime is not None:
        runtime.cudaSetDeviceFlags(_BLOCKING_SYNC)


def _cuda_runtime() -> Any:
    """Returns the CUDA runtime that torch has loaded; None where it isn't found."""
    major = str(torch.version.cuda or "").partition(".")[0]
    try:
        return ctypes.CDLL(f"libcudart.so.{major}")
    except OSError:
        return None
