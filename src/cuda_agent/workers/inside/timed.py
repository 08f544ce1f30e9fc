"""The timing operations of a worker, the same for candidate and baseline (`workers.requests.timed`)."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from cuda_agent.workers.inside.dispatch import recorded
from cuda_agent.workers.inside.main import Context
from cuda_agent.workers.inside.runner import Outputs, Program, Runner, Slot, laid_out, lies_otherwise, null_program
from cuda_agent.workers.inside.screen import attempt, screen
from cuda_agent.workers.inside.task.pytree import unflatten
from cuda_agent.workers.inside.task.taskmemory import free_cache
from cuda_agent.workers.inside.task.taskmodule import seed_torch
from cuda_agent.workers.requests import Done, Operations, operations_of
from cuda_agent.workers.requests import timed as requests
from cuda_agent.workers.requests.candidate import DispatchRecord

NULL = "null"


class TimedPrograms:
    """Times programs. `lookup` returns a program by name, ready to run (with its global flags set)."""

    def __init__(
        self,
        context: Context,
        lookup: Callable[[str], Program],
        *,
        set_config: Callable[[Mapping[str, int]], None] | None = None,
        with_null: bool = False,
    ) -> None:
        self._context, self._lookup = context, lookup
        self._set_config, self.with_null = set_config, with_null
        self._tensors: list[list[Any]] = []
        self._slots: list[Slot] = []
        self._inputs_at: frozenset[int] = frozenset()
        self._outputs: list[Outputs] = []
        self._strides: Sequence[Sequence[int]] = ()
        #: programs whose outputs have another layout than the reference's.
        self._otherwise: set[str] = set()
        self._null: Program | None = None
        self._cores: set[int] = set()

    def operations(self) -> Operations:
        """Returns the operations for the role's `create`."""
        always = operations_of(
            self.make_ring, self.drop_ring, self.warm_up, self.get_ready, self.run_burst, self.deliver,
            self.record_burst, self.release, self.time_queue, self.measure_extras,
        )  # fmt: skip
        return always if self._set_config is None else {**always, **operations_of(self.attempt, self.screen)}

    @cached_property
    def runner(self) -> Runner:
        """The runner, made when the device is known."""
        return Runner(self._context.device.value)

    def make_ring(self, request: requests.MakeRing) -> Done:
        self.drop_ring(requests.DropRing())
        self._cores = self._cores or os.sched_getaffinity(0)
        inputs = self._context.tensors(request.inputs)
        outputs = self._context.tensors(request.outputs)
        self._tensors = _parts(inputs, request.slots)
        self._inputs_at = frozenset(tensor.untyped_storage().data_ptr() for tensor in inputs if tensor.numel())
        self._slots = [unflatten(request.spec, part) for part in self._tensors]
        self._outputs = list(_parts(outputs, request.slots))
        self._strides = request.strides
        if self.with_null:
            self._null = null_program([[place.clone() for place in part] for part in self._outputs])
        # torch's imports are a quarter of a million objects, which cost nothing outside the collector's sight.
        gc.collect()
        gc.freeze()
        return Done()

    def drop_ring(self, request: requests.DropRing) -> Done:
        self.runner.release()
        self._stay_on(None)
        self._tensors, self._slots, self._outputs, self._null = [], [], [], None
        self._otherwise.clear()
        if request.frees:
            gc.collect()
            free_cache(self._context.device)
        return Done()

    def warm_up(self, request: requests.WarmUp) -> requests.Warmed:
        name = request.program
        program = self._program(name)
        value = self.runner.warmup(program, self._slots, calls=request.calls, seconds=request.seconds)
        otherwise = lies_otherwise(value, self._strides)
        if otherwise:
            self._otherwise.add(name)
            self.runner.warmup(self._program(name), self._slots, calls=1)
        return requests.Warmed(otherwise=otherwise)

    def get_ready(self, request: requests.GetReady) -> Done:
        self._stay_on(request.core)
        self._context.spin_s = request.spin_s
        self.runner.rouse(flush_bytes=request.flush_bytes)
        return Done()

    def run_burst(self, request: requests.RunBurst) -> requests.BurstTimes:
        program, slots = self._program(request.program), self._slots
        if request.specs is not None:
            pairs = zip(request.specs, self._tensors, strict=False)
            slots = [unflatten(spec, tensors) for spec, tensors in pairs]
        seed_torch(request.rng)
        times = self.runner.run(program, slots, flush_bytes=request.flush_bytes, inputs_at=self._inputs_at)
        return requests.BurstTimes(event_us=times.event_us, waited_us=times.waited_us)

    def deliver(self, _request: requests.DeliverOutputs) -> Done:
        self.runner.deliver(self._outputs)
        return Done()

    def record_burst(self, request: requests.RecordBurst) -> DispatchRecord:
        program = self._program(request.program)
        with recorded() as operators:
            self.runner.run(program, self._slots[: request.calls])
        self.runner.release()
        return operators.report()

    def release(self, _request: requests.ReleaseOutputs) -> Done:
        self._context.spin_s = 0.0
        self.runner.release()
        return Done()

    def time_queue(self, request: requests.TimeQueue) -> requests.QueueTime:
        return requests.QueueTime(us=self.runner.queue(self._program(request.program), self._slots, request.calls))

    def measure_extras(self, request: requests.MeasureExtras) -> requests.ExtraFigures:
        program = self._program(request.program)
        peak = self.runner.peak_memory(program, self._slots[0])
        busy = self.runner.busy(program, self._slots) if request.busy else None
        return requests.ExtraFigures(busy_us=busy, peak_memory_bytes=peak)

    def attempt(self, request: requests.TryConfigs) -> requests.TriedConfigs:
        assert self._set_config is not None
        return attempt(self.runner, self._program(request.program), self._set_config, self._slots[0], request)

    def screen(self, request: requests.ScreenConfigs) -> requests.ScreenTimes:
        assert self._set_config is not None
        program = self._program(request.program)
        self._stay_on(request.core)
        return screen(self.runner, program, self._set_config, self._slots, request)

    def _stay_on(self, core: int | None) -> None:
        """Moves this thread only, and only if the system allows it. No measurement depends on it, but its spread
        does."""
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self._cores if core is None else {core})

    def _program(self, name: str) -> Program:
        if name == NULL and self._null is not None:
            return self._null
        program = self._lookup(name)
        return laid_out(program, self._strides) if name in self._otherwise else program


def _parts(tensors: list[Any], count: int) -> list[list[Any]]:
    each = len(tensors) // count
    return [tensors[i * each : (i + 1) * each] for i in range(count)]
