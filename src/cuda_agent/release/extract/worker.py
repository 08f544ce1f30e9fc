"""Finds the tasks in a model, inside a sandbox. Its arguments are the files JOB and RESULT.

JOB holds an `ExtractionJob`, RESULT will hold an `ExtractionAnswer`. The user's code runs here and nowhere else.
"""

import contextlib
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from cuda_agent.core.errors import CudaAgentError, TaskError
from cuda_agent.core.extraction import LeftOutPart
from cuda_agent.core.files import unused
from cuda_agent.release.extract.calls import draw
from cuda_agent.release.extract.choose import PartGroup, TaskChoice, choose
from cuda_agent.release.extract.closure import Inexpressible, own_modules
from cuda_agent.release.extract.constructors import Constructions
from cuda_agent.release.extract.exchange import DraftTask, ExtractionAnswer, ExtractionJob, Findings
from cuda_agent.release.extract.survey import Part, Survey, hooked, survey
from cuda_agent.release.extract.writing import Rebuilt, describe, write_task
from cuda_agent.workers.inside.task.pytree import CannotPass, flatten
from cuda_agent.workers.inside.task.taskmodule import (
    load_task_module,
    make_init_inputs,
    make_inputs,
    make_model,
    run_forward,
    task_code,
)
from cuda_agent.workers.inside.task.weights import state_metas

#: passes with other inputs, which show whether a submodule's call depends on the data.
_OTHER_INPUTS = 3


class ModelExtraction:
    """The extraction of tasks from one model in this process."""

    def __init__(self, job: ExtractionJob) -> None:
        self._job = job
        self._device = job.device.value
        self.task = load_task_module(job.source, job.name)
        init = make_init_inputs(self.task, job.seed)
        self._constructions = Constructions()
        with self._constructions.recording():
            self._model = make_model(self.task, init, self._device, job.seed)
        self._model.requires_grad_(False)
        self._inputs = make_inputs(self.task, self._device, job.seed + 1)
        self._own = own_modules(job.folders)

    def findings(self) -> Findings:
        """Raises TaskError."""
        self._check_output(self._run())
        found = survey(self._model, self._run, self._device, self._run_others)
        if found.total_us <= 0:
            raise TaskError(f"{self._job.name}: no part of it could be timed", "Use larger inputs")
        choice = choose(found.parts, self._job.operators)
        tasks = self._tasks(found, choice)
        left = [self._left(found, group) for group in choice.left_out]
        return Findings(
            total_us=found.total_us,
            outside_us=choice.outside_us,
            note=found.note,
            tasks=tuple(tasks),
            left_out=tuple(sorted(left, key=lambda one: -one.time_us)),
        )

    def _check_output(self, output: Any) -> None:
        """Raises TaskError where the model's output can't be compared."""
        try:
            flatten(output)
        except TaskError as error:
            cached = isinstance(error, CannotPass) and "Cache" in error.kind
            remedy = "Add --input use_cache=False" if cached else "Wrap the model so that it returns tensors"
            raise TaskError(f"{self._job.name} can't be compared as a whole: {error.cause}", remedy) from None

    def _run(self) -> Any:
        return run_forward(self.task, self._model, self._inputs)

    def _run_others(self) -> None:
        """Runs the model on other inputs than those that the tasks are made of."""
        for seed in range(_OTHER_INPUTS):
            inputs = make_inputs(self.task, self._device, self._job.seed + 2 + seed)
            run_forward(self.task, self._model, inputs)

    def _tasks(self, found: Survey, choice: TaskChoice) -> list[DraftTask]:
        """Returns the slowest groups as tasks. Members that differ from their group's first form a new group."""
        tasks: list[DraftTask] = []
        pending = list(choice.units)
        while pending and len(tasks) < self._job.top:
            group = pending.pop(0)
            name = unused(found.parts[group.members[0]].kind, {task.name for task in tasks}.__contains__, "_")
            try:
                task, others = self._task_of(found, group, name)
            except Inexpressible as error:
                group.reason = str(error)
                choice.left_out.append(group)
                self._look_inside(found, group, choice, pending)
                continue
            tasks.append(task)
            if others:
                rest = PartGroup(group.kind, others, sum(found.parts[i].us for i in others))
                pending = sorted([*pending, rest], key=lambda one: -one.us)
        for group in pending:
            group.reason = f"not among the first {self._job.top}: raise --top"
            choice.left_out.append(group)
        # A group that was split has less time than before, so the tasks are sorted again.
        return sorted(tasks, key=lambda task: -task.time_us)

    def _look_inside(self, found: Survey, group: PartGroup, choice: TaskChoice, pending: list[PartGroup]) -> None:
        """Adds the children of a group that can't be written as a task: they may be tasks."""
        parts = found.parts
        children = [child for index in group.members for child in parts[index].children]
        if not children:
            return
        group.us = sum(parts[index].own_us for index in group.members)
        head = Part("", self._model, children=children)
        inner = choose([head, *parts[1:]], self._job.operators)
        choice.left_out += inner.left_out
        pending += inner.units
        pending.sort(key=lambda one: -one.us)

    def _task_of(self, found: Survey, group: PartGroup, name: str) -> tuple[DraftTask, list[int]]:
        """Returns the task of a group's first member, and the members that differ from it. Raises Inexpressible."""
        first = found.parts[group.members[0]]
        draws = self._draws(first)
        # The task is written twice: only a run of the first text shows which members are the same.
        rebuilt = Rebuilt(write_task(first, draws, self._constructions, self._own, name, name), first, self._device)
        rebuilt.check_draws()
        rebuilt.check_captured()
        differences = self._compare(rebuilt, [found.parts[index] for index in group.members])
        if differences[0]:
            raise Inexpressible(differences[0])
        same = [index for index, difference in zip(group.members, differences, strict=True) if not difference]
        others = [index for index in group.members if index not in same]
        paths = [found.parts[index].path for index in same]
        us, calls = sum(found.parts[i].us for i in same), sum(found.parts[i].calls for i in same)
        share = min(1.0, us / found.total_us)
        described = describe(self._job.name, first, paths, calls)
        written = write_task(first, draws, self._constructions, self._own, name, described)
        task = DraftTask(
            name=name,
            source=written.source,
            kind=group.kind,
            origin=written.origin,
            paths=tuple(paths),
            calls=calls,
            time_us=us,
            share=share,
            operators=first.operators,
            weights=len(state_metas(first.module)),
            call=first.spec,
            inputs=first.inputs,
        )
        return task, others

    def _draws(self, part: Part) -> list[str]:
        """Returns text that draws each input of the part's first call. Raises Inexpressible."""
        drawn: list[str] = []
        failed: list[Inexpressible] = []

        def enter(_index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if drawn or failed:
                return
            try:
                drawn.extend(draw(tensor) for tensor in flatten({"args": list(args), "kwargs": kwargs})[1])
            except Inexpressible as error:
                failed.append(error)

        with hooked([part], enter, lambda _index, _output: None):
            self._model(*self._inputs)
        if failed:
            raise failed[0]
        return drawn

    def _compare(self, rebuilt: Rebuilt, parts: list[Part]) -> list[str]:
        """Returns the difference of each part from the rebuilt one; "" where there is none."""
        found: list[str | None] = [None] * len(parts)
        calls: dict[int, tuple[Any, Any]] = {}

        def enter(index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # The submodule may change its inputs, so they are copied.
            calls[index] = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))

        def leave(index: int, output: Any) -> None:
            args, kwargs = calls.pop(index)
            if not found[index]:
                found[index] = rebuilt.difference(parts[index].module, args, kwargs, output)

        with hooked(parts, enter, leave):
            self._model(*self._inputs)
        return ["it wasn't called again" if one is None else one for one in found]

    def _left(self, found: Survey, group: PartGroup) -> LeftOutPart:
        return LeftOutPart(
            kind=group.kind,
            paths=tuple(found.parts[index].path for index in group.members),
            time_us=group.us,
            share=min(1.0, group.us / found.total_us),
            reason=group.reason[:500],
        )


def answer(job: ExtractionJob) -> ExtractionAnswer:
    """Extracts the tasks. An error that the user can correct is in the answer."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            extraction = ModelExtraction(job)
            with task_code(extraction.task, "Model.forward"):
                return ExtractionAnswer(findings=extraction.findings())
    except CudaAgentError as error:
        return ExtractionAnswer(cause=error.cause, remedy=error.remedy, detail=error.detail)


def main() -> None:
    job, result = map(Path, sys.argv[1:])
    # The user's code may print.
    with contextlib.redirect_stdout(sys.stderr):
        found = answer(ExtractionJob.model_validate_json(job.read_text()))
    result.write_text(found.model_dump_json())
