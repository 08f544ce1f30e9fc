"""The baseline workers' role: eager or compiled forms of the task, timed by the same code as a candidate.

They stand apart from the reference worker, so that compilers and global flags touch nobody's answers, and never run
a candidate's code, so that the null program of the one with the eager forms calibrates the judge's clock.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from typing import Any

from cuda_agent.core.enums import Device, Precision
from cuda_agent.workers.inside.baselines import BaselineSet, Planned, stop_compiler_processes
from cuda_agent.workers.inside.compilations import import_compiler
from cuda_agent.workers.inside.main import Context, Operation
from cuda_agent.workers.inside.runner import Program
from cuda_agent.workers.inside.task.taskmemory import free_cache
from cuda_agent.workers.inside.task.taskmodule import import_task
from cuda_agent.workers.inside.timed import TimedPrograms


def create(context: Context) -> Mapping[str, Operation]:
    baseline = Baseline(context)
    timed = TimedPrograms(context, baseline.program, with_null=True)

    def load(params: dict[str, Any]) -> dict[str, Any]:
        timed.with_null = not params["compiled"]
        return baseline.load(params)

    def unring(params: dict[str, Any]) -> dict[str, Any]:
        timed.unring(params)
        baseline.give_back()
        return {}

    return {
        **timed.operations(),
        "unring": unring,
        "import_compiler": prepare_compiler,
        "import_task": import_task,
        "load": load,
        "prepare": baseline.prepare,
        "settle": baseline.settle,
        "forget": baseline.forget,
        "retire": baseline.retire,
        "set_weights": baseline.set_weights,
    }


def prepare_compiler(params: dict[str, Any]) -> dict[str, Any]:
    """{device, environment}: imports the compiler; `environment`: its settings, which it reads then."""
    os.environ.update(params["environment"])
    import_compiler(Device(params["device"]))
    return {}


class Baseline:
    """The forms of one task in this process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._set: BaselineSet
        self._planned: dict[str, Planned] = {}

    def load(self, params: dict[str, Any]) -> dict[str, Any]:
        """{name, source, precision, seed, autotune, compiled}: which forms there are. `compiled`: whether this worker
        is for the compiled ones."""
        precision = Precision(params["precision"])
        self.forget({})
        self._set = BaselineSet(
            params["source"], params["name"], self._context.device, precision, seed=int(params["seed"])
        )
        found = self._set.planned(autotune=bool(params["autotune"]))
        self._planned = {one.name: one for one in found if (one.form.compile is not None) is params["compiled"]}
        return {"forms": [{"name": one.name, "matched": one.matched} for one in self._planned.values()]}

    def forget(self, _params: dict[str, Any]) -> dict[str, Any]:
        """Frees whatever is loaded."""
        self._planned = {}
        if hasattr(self, "_set"):
            del self._set
        gc.collect()
        self.give_back()
        return {}

    def prepare(self, params: dict[str, Any]) -> dict[str, Any]:
        """{form, bandwidth}: compile it and run it until it is warm, unless it can't be the fastest (None: nobody knows
        the bandwidth). Answers what the compiler made of it, or why it is left out."""
        bandwidth = params["bandwidth"]
        outlasted = "" if bandwidth is None else self._set.outlasted(self._planned[params["form"]], float(bandwidth))
        if outlasted:
            return {"left_out": outlasted}
        self._set.prepare(self._planned[params["form"]])
        return {"compiled": self._set.compilations.get(params["form"])}

    def settle(self, _params: dict[str, Any]) -> dict[str, Any]:
        """Everything is prepared: frees what only preparing needs. Answers what is held."""
        self._set.drop_sample()
        stop_compiler_processes()
        gc.collect()
        # A compiler is a quarter of a million objects; the timing's own collection needn't walk over them.
        gc.freeze()
        return {"held_bytes": self.give_back()}

    def retire(self, params: dict[str, Any]) -> dict[str, Any]:
        """{form}: it isn't asked for again; frees what it holds. Answers what is left."""
        self._set.retire(params["form"])
        gc.collect()
        return {"held_bytes": self.give_back()}

    def give_back(self) -> int:
        """Frees what nothing uses. Returns the bytes that are held: weights, and the pool of captured graphs."""
        return free_cache(self._context.device)

    def set_weights(self, params: dict[str, Any]) -> dict[str, Any]:
        """{names, arena, layout}: the state dict's tensors, copied into every form."""
        tensors = self._context.tensors(params["arena"], params["layout"])
        self._set.load_weights(dict(zip(params["names"], tensors, strict=True)))
        return {}

    def program(self, name: str) -> Program:
        return self._set.program(name)
