"""Takes a model apart: `python -m cuda_agent.release.extract.worker JOB RESULT`, inside a sandbox.

JOB: {source, name, folders, device, seed, top, operators}. RESULT: what `extract.Found` holds, or {error: {cause,
remedy, detail}}. The user's code runs here and nowhere else.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cuda_agent.core.errors import CudaAgentError, TaskError
from cuda_agent.release.extract.calls import draw
from cuda_agent.release.extract.choose import Choice, Group, choose
from cuda_agent.release.extract.closure import Inexpressible, own_modules
from cuda_agent.release.extract.constructors import Constructions
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


class Taking:
    """One model in this process."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._device: str = job["device"]
        self._task = load_task_module(job["source"], job["name"])
        init = make_init_inputs(self._task, job["seed"])
        self._constructions = Constructions()
        with self._constructions.recording():
            self._model = make_model(self._task, init, self._device, job["seed"])
        self._model.requires_grad_(False)
        self._inputs = make_inputs(self._task, self._device, job["seed"] + 1)
        self._own = own_modules(tuple(job["folders"]))

    def take(self) -> dict[str, Any]:
        """Raises TaskError."""
        self._check_output(self._run())
        found = survey(self._model, self._run, self._device)
        if found.total_us <= 0:
            raise TaskError(f"{self._job['name']}: nothing of it could be timed", "Use larger inputs")
        choice = choose(found.parts, self._job["operators"])
        tasks = self._tasks(found, choice)
        left = [self._left(found, group) for group in choice.left_out]
        return {
            "total_us": found.total_us,
            "outside_us": choice.outside_us,
            "note": found.note,
            "tasks": tasks,
            "left_out": sorted(left, key=lambda one: -float(one["time_us"])),
        }

    def _check_output(self, output: Any) -> None:
        """Raises TaskError where the whole couldn't be compared."""
        try:
            flatten(output)
        except TaskError as error:
            cached = isinstance(error, CannotPass) and "Cache" in error.kind
            remedy = "Add --input use_cache=False" if cached else "Wrap the model so that it returns tensors"
            raise TaskError(f"{self._job['name']} can't be compared as a whole: {error.cause}", remedy) from None

    def _run(self) -> Any:
        return run_forward(self._task, self._model, self._inputs)

    def _tasks(self, found: Survey, choice: Choice) -> list[dict[str, Any]]:
        """The longest groups as tasks; what isn't the same as its group's first becomes a group of its own."""
        tasks: list[dict[str, Any]] = []
        pending = list(choice.units)
        while pending and len(tasks) < self._job["top"]:
            group = pending.pop(0)
            try:
                task, others = self._task_of(found, group, self._name(found.parts[group.members[0]], tasks))
            except Inexpressible as error:
                group.reason = str(error)
                choice.left_out.append(group)
                self._look_inside(found, group, pending)
                continue
            tasks.append(task)
            if others:
                rest = Group(group.kind, others, sum(found.parts[i].us for i in others))
                pending = sorted([*pending, rest], key=lambda one: -one.us)
        for group in pending:
            group.reason = f"not among the first {self._job['top']}: raise --top"
            choice.left_out.append(group)
        # A group that fell apart has less time than it was taken for.
        return sorted(tasks, key=lambda task: -float(task["time_us"]))

    def _look_inside(self, found: Survey, group: Group, pending: list[Group]) -> None:
        """The children of what can't be written down may be tasks."""
        parts = found.parts
        children = [child for index in group.members for child in parts[index].children]
        if not children:
            return
        group.us = sum(parts[index].own_us for index in group.members)
        head = Part("", self._model, children=children)
        inner = choose([head, *parts[1:]], self._job["operators"])
        pending += inner.units
        pending.sort(key=lambda one: -one.us)

    def _name(self, part: Part, tasks: list[dict[str, Any]]) -> str:
        taken = {task["name"] for task in tasks}
        name, number = part.kind, 1
        while name in taken:
            number += 1
            name = f"{part.kind}_{number}"
        return name

    def _task_of(self, found: Survey, group: Group, name: str) -> tuple[dict[str, Any], list[int]]:
        """The task of a group's first member, and the members that aren't the same. Raises Inexpressible."""
        first = found.parts[group.members[0]]
        draws = self._draws(first)
        # Written twice: which members are the same shows when the first text runs.
        rebuilt = Rebuilt(write_task(first, draws, self._constructions, self._own, name, name), first, self._device)
        rebuilt.check_draws()
        differences = self._compare(rebuilt, [found.parts[index] for index in group.members])
        if differences[0]:
            raise Inexpressible(differences[0])
        same = [index for index, said in zip(group.members, differences, strict=True) if not said]
        others = [index for index in group.members if index not in same]
        paths = [found.parts[index].path for index in same]
        us, calls = sum(found.parts[i].us for i in same), sum(found.parts[i].calls for i in same)
        share = min(1.0, us / found.total_us)
        said = describe(self._job["name"], first, paths, calls)
        written = write_task(first, draws, self._constructions, self._own, name, said)
        return {
            "name": name,
            "source": written.source,
            "kind": group.kind,
            "origin": written.origin,
            "paths": paths,
            "calls": calls,
            "time_us": us,
            "share": share,
            "operators": first.operators,
            "weights": len(state_metas(first.module)),
            "call": first.spec,
            "inputs": [meta.model_dump(mode="json") for meta in first.inputs],
        }, others

    def _draws(self, part: Part) -> list[str]:
        """Text for each input of its first call."""
        drawn: list[str] = []
        failed: list[Inexpressible] = []

        def enter(_index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if drawn or failed:
                return
            try:
                drawn.extend(draw(tensor) for tensor in flatten({"args": list(args), "kwargs": kwargs})[1])
            except Inexpressible as error:
                failed.append(error)

        self._hooked([part], enter, lambda _index, _output: None)
        if failed:
            raise failed[0]
        return drawn

    def _compare(self, rebuilt: Rebuilt, parts: list[Part]) -> list[str]:
        """What of each is different from the rebuilt one; "" where nothing is."""
        said: list[str | None] = [None] * len(parts)
        calls: dict[int, tuple[Any, Any]] = {}

        def enter(index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # The submodule may change its inputs.
            calls[index] = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))

        def leave(index: int, output: Any) -> None:
            args, kwargs = calls.pop(index)
            if not said[index]:
                said[index] = rebuilt.difference(parts[index].module, args, kwargs, output)

        self._hooked(parts, enter, leave)
        return ["it wasn't called again" if one is None else one for one in said]

    def _hooked(self, parts: list[Part], enter: Callable[..., None], leave: Callable[..., None]) -> None:
        with hooked(parts, enter, leave):
            self._model(*self._inputs)

    def _left(self, found: Survey, group: Group) -> dict[str, Any]:
        return {
            "kind": group.kind,
            "paths": [found.parts[index].path for index in group.members],
            "time_us": group.us,
            "share": min(1.0, group.us / found.total_us),
            "reason": group.reason[:500],
        }


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """What was found, or the error."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            taking = Taking(job)
            with task_code(taking._task, "Model.forward"):
                return taking.take()
    except CudaAgentError as error:
        return {"error": {"cause": error.cause, "remedy": error.remedy, "detail": error.detail}}


def main(arguments: list[str]) -> int:
    job, result = (Path(argument) for argument in arguments)
    # What the user's code prints is no answer.
    with contextlib.redirect_stdout(sys.stderr):
        found = answer(json.loads(job.read_text()))
    result.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
