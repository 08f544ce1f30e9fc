"""The baseline workers' role: eager or compiled forms of the task, timed by the same code as a candidate.

These workers are separate from the reference worker, so that compilers and global flags change no answers. They never
run a candidate's code, so that the null program of the one with the eager forms calibrates the judge's clock.
"""

from __future__ import annotations

import gc
import os

from cuda_agent.workers.inside.baselines import BaselineSet, Planned, stop_compiler_processes
from cuda_agent.workers.inside.compilations import import_compiler
from cuda_agent.workers.inside.main import Context
from cuda_agent.workers.inside.runner import Program
from cuda_agent.workers.inside.task.taskmemory import free_cache
from cuda_agent.workers.inside.task.taskmodule import import_task
from cuda_agent.workers.inside.timed import TimedPrograms
from cuda_agent.workers.requests import Done, HeldMemory, Operations, operations_of
from cuda_agent.workers.requests import baseline as requests
from cuda_agent.workers.requests.timed import DropRing


def create(context: Context) -> Operations:
    baseline = BaselinePrograms(context)
    own = operations_of(
        prepare_compiler, import_task, baseline.plan, baseline.prepare, baseline.settle, baseline.retire,
        baseline.drop_ring, baseline.copy_weights,
    )  # fmt: skip
    return {**baseline.timed.operations(), **own}


def prepare_compiler(request: requests.ImportCompiler) -> Done:
    os.environ.update(request.environment)
    import_compiler(request.device)
    return Done()


class BaselinePrograms:
    """The forms of one task in this process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.timed = TimedPrograms(context, self.program, with_null=True)
        self._set: BaselineSet
        self._planned: dict[str, Planned] = {}

    def plan(self, request: requests.PlanBaselines) -> requests.PlannedBaselines:
        self.timed.with_null = not request.compiled
        self._set = BaselineSet(request.source, request.name, self._context.device, request.precision)
        found = self._set.planned(autotune=request.autotune)
        self._planned = {one.name: one for one in found if (one.form.compile is not None) is request.compiled}
        return requests.PlannedBaselines(matched={one.name: one.matched for one in self._planned.values()})

    def prepare(self, request: requests.PrepareBaseline) -> requests.PreparedBaseline:
        name, planned = request.baseline, self._planned[request.baseline]
        outlasted = "" if request.bandwidth is None else self._set.outlasted(planned, request.bandwidth)
        if outlasted:
            return requests.PreparedBaseline(left_out=outlasted)
        self._set.prepare(planned)
        return requests.PreparedBaseline(compiled=self._set.compilations.get(name))

    def settle(self, _request: requests.SettleBaselines) -> HeldMemory:
        self._set.drop_sample()
        stop_compiler_processes()
        gc.collect()
        # A compiler is a quarter of a million objects, over which the timing's own collection needn't walk.
        gc.freeze()
        return HeldMemory(held_bytes=free_cache(self._context.device))

    def retire(self, request: requests.RetireBaseline) -> HeldMemory:
        self._set.retire(request.baseline)
        gc.collect()
        return HeldMemory(held_bytes=free_cache(self._context.device))

    def drop_ring(self, request: DropRing) -> Done:
        self.timed.drop_ring(request)
        free_cache(self._context.device)
        return Done()

    def copy_weights(self, request: requests.CopyWeights) -> Done:
        tensors = self._context.tensors(request.weights)
        self._set.load_weights(dict(zip(request.names, tensors, strict=True)))
        return Done()

    def program(self, name: str) -> Program:
        return self._set.program(name)
