"""The timing operations of a worker, the same for candidate and baseline: rings of slots, bursts, queues, screening.

Requests (names are the operations that a role adds to its own):
  ring    {slots, spec, inputs: {arena, layout}, outputs: {arena, layout}, strides}   `layout` lists the slots one after
                                                 the other, `strides` how the reference's outputs lie in memory
  unring  {}                                     forgets the rings, so that their arenas may be detached
  warm    {program, calls, seconds}              -> {otherwise: [outputs that lie otherwise]}   from here on the program
                                                 copies them into the reference's layout as a part of each call
  ready   {core, spin_s, flush_bytes}            a burst comes: moves to the core that it launches from (null:
                                                 anywhere), and doesn't sleep until `release`, or for so long
  burst   {program, flush_bytes, specs}          -> {event_us: [one per slot], waited_us}   (see `runner.Times`)
                                                 `specs`: one per slot to run, the first ones; null: all, as the ring
                                                 says
  deliver {}                                     the last burst's outputs into the output ring
  record  {program, calls}                       -> what the dispatcher saw of a burst of so many (`guard.operators`)
  release {}                                     frees the last burst's outputs
  queue   {program, calls}                       -> {us}
  extras  {program, busy}                        -> {busy_us, peak_memory_bytes}, null where not known or not asked for
  screen  {program, configs, budget_s, flush_bytes} -> {latency_us: […], failures: {index: reason}, device_lost,
          out_of_memory}
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cuda_agent.core.enums import Device
from cuda_agent.workers.inside.dispatch import recorded
from cuda_agent.workers.inside.runner import Outputs, Program, Runner, Slot, laid_out, lies_otherwise, null_program
from cuda_agent.workers.inside.screen import screen
from cuda_agent.workers.inside.task.pytree import unflatten

NULL = "null"


class TensorSource(Protocol):
    """What this needs of a worker's context."""

    device: Device
    spin_s: float

    def tensors(self, arena: str, layout: Any) -> list[Any]: ...


class TimedPrograms:
    """`lookup` gives a program by name, ready to run (its global flags set)."""

    def __init__(
        self,
        context: TensorSource,
        lookup: Callable[[str], Program],
        *,
        set_config: Callable[[Mapping[str, int]], None] | None = None,
        with_null: bool = False,
    ) -> None:
        self._context, self._lookup = context, lookup
        self._set_config, self.with_null = set_config, with_null
        self._runner: Runner | None = None
        self._tensors: list[list[Any]] = []
        self._slots: list[Slot] = []
        self._inputs_at: frozenset[int] = frozenset()
        self._outputs: list[Outputs] = []
        self._strides: list[list[int]] = []
        #: programs whose outputs lie otherwise than the reference's.
        self._otherwise: set[str] = set()
        self._null: Program | None = None
        self._cores: set[int] = set()

    def operations(self) -> dict[str, Callable[[dict[str, Any]], Any]]:
        """Operations by name, for the role's `create`."""
        named: dict[str, Callable[[dict[str, Any]], Any]] = {
            "ring": self.ring,
            "unring": self.unring,
            "warm": self.warm,
            "ready": self.ready,
            "burst": self.burst,
            "deliver": self.deliver,
            "record": self.record,
            "release": self.release,
            "queue": self.queue,
            "extras": self.extras,
        }
        return {**named, "screen": self.screen} if self._set_config is not None else named

    @property
    def runner(self) -> Runner:
        if self._runner is None:
            self._runner = Runner(self._context.device.value)
        return self._runner

    def ring(self, params: dict[str, Any]) -> dict[str, Any]:
        count = int(params["slots"])
        self.unring({})
        self._cores = self._cores or os.sched_getaffinity(0)
        inputs = self._context.tensors(**params["inputs"])
        outputs = self._context.tensors(**params["outputs"])
        self._tensors = _parts(inputs, count)
        self._inputs_at = frozenset(tensor.untyped_storage().data_ptr() for tensor in inputs if tensor.numel())
        self._slots = [unflatten(params["spec"], part) for part in self._tensors]
        self._outputs = list(_parts(outputs, count))
        self._strides = params["strides"]
        if self.with_null:
            self._null = null_program([[place.clone() for place in part] for part in self._outputs])
        # What torch has imported is a quarter of a million objects; out of the collector's sight it costs nothing.
        gc.collect()
        gc.freeze()
        return {}

    def unring(self, _params: dict[str, Any]) -> dict[str, Any]:
        self.runner.release()
        self._stay_on(None)
        self._tensors, self._slots, self._outputs, self._null = [], [], [], None
        self._otherwise.clear()
        return {}

    def warm(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params["program"]
        program, calls = self._program(name), int(params["calls"])
        value = self.runner.warmup(program, self._slots, calls=calls, seconds=float(params["seconds"]))
        otherwise = lies_otherwise(value, self._strides)
        if otherwise:
            self._otherwise.add(name)
            self.runner.warmup(self._program(name), self._slots, calls=1)
        return {"otherwise": otherwise}

    def ready(self, params: dict[str, Any]) -> dict[str, Any]:
        self._stay_on(params["core"])
        self._context.spin_s = float(params["spin_s"])
        self.runner.rouse(flush_bytes=int(params["flush_bytes"]))
        return {}

    def burst(self, params: dict[str, Any]) -> dict[str, Any]:
        program, slots = self._program(params["program"]), self._slots
        if params["specs"] is not None:
            pairs = zip(params["specs"], self._tensors, strict=False)
            slots = [unflatten(spec, tensors) for spec, tensors in pairs]
        times = self.runner.run(program, slots, flush_bytes=int(params["flush_bytes"]), inputs_at=self._inputs_at)
        return {"event_us": times.event_us, "waited_us": times.waited_us}

    def deliver(self, _params: dict[str, Any]) -> dict[str, Any]:
        self.runner.deliver(self._outputs)
        return {}

    def record(self, params: dict[str, Any]) -> dict[str, Any]:
        program, calls = self._program(params["program"]), int(params["calls"])
        with recorded() as operators:
            self.runner.run(program, self._slots[:calls])
        self.runner.release()
        return operators.report()

    def release(self, _params: dict[str, Any]) -> dict[str, Any]:
        self._context.spin_s = 0.0
        self.runner.release()
        return {}

    def queue(self, params: dict[str, Any]) -> dict[str, Any]:
        program = self._program(params["program"])
        return {"us": self.runner.queue(program, self._slots, int(params["calls"]))}

    def extras(self, params: dict[str, Any]) -> dict[str, Any]:
        program = self._program(params["program"])
        peak = self.runner.peak_memory(program, self._slots[0])
        busy = self.runner.busy(program, self._slots) if params["busy"] else None
        return {"busy_us": busy, "peak_memory_bytes": peak}

    def screen(self, params: dict[str, Any]) -> dict[str, Any]:
        assert self._set_config is not None
        program = self._program(params["program"])
        self._stay_on(params["core"])
        found = screen(
            self.runner,
            program,
            self._set_config,
            params["configs"],
            self._slots,
            budget_s=float(params["budget_s"]),
            flush_bytes=int(params["flush_bytes"]),
        )
        failures = {str(index): reason for index, reason in found.failures.items()}
        told = {"device_lost": found.device_lost, "out_of_memory": found.out_of_memory}
        return {"latency_us": found.latency_us, "failures": failures, **told}

    def _stay_on(self, core: int | None) -> None:
        """This thread alone, and only if the system allows it: no measurement depends on it, its spread does."""
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
