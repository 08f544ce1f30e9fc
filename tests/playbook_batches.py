"""Runs the kernels of many graphs that share a few compiles: every source is a namespace of one translation unit."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Graph
from cuda_agent.playbook.algebra import rewrite
from cuda_agent.playbook.plan import Step
from cuda_agent.playbook.planner import plan
from playbook_harness import CPU_FLAGS, CUDA_FLAGS, call_step, flat, given_buffers, graph_of, launcher_of, printed

#: the judge's flags for kernels that change values.
_CPU_VALUES = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-w")
_PAST_CACHES = re.compile("const bool past = .*;")
_INCLUDE = re.compile(r"^#include .*\n", re.MULTILINE)


@dataclass(frozen=True)
class Planned:
    """A graph with the steps that compute it. `returned` are the buffers of its results."""

    graph: Graph
    steps: tuple[Step, ...]
    returned: tuple[str, ...]


def planned(graph: Graph, device: Device, taken: set[str]) -> Planned:
    """Plans a graph, with names of kernels that aren't taken, and takes these. Raises NotCovered."""
    steps, state = plan(graph, device, Precision.FP32, taken=sorted(taken))
    taken.update(step.name for step in steps)
    return Planned(graph, steps, state.returned)


def compiled(plans: Sequence[Planned], device: Device, parts: int = 2) -> dict[str, Any]:
    """Compiles all kernels, in so many translation units side by side. Returns the launchers by step."""
    steps = printed([step for one in plans for step in one.steps])
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(parts) as pool:
        shares = [(steps[at::parts], Path(folder) / str(at), device) for at in range(parts)]
        libraries = pool.map(lambda share: _library(*share), shares)
        return {name: function for library in libraries for name, function in library.items()}


def _library(steps: Sequence[Step], folder: Path, device: Device) -> dict[str, Any]:
    if not steps:
        return {}
    folder.mkdir()
    suffix = "cpp" if device is Device.CPU else "cu"
    headers: dict[str, str] = {}
    includes: dict[str, None] = {}
    bodies = []
    for step in steps:
        helpers = {Path(path).name: text for path, text in step.files.items() if not path.endswith(suffix)}
        headers |= helpers
        source = next(text for path, text in step.files.items() if path.endswith(suffix))
        includes |= dict.fromkeys(_INCLUDE.findall(source))
        # The other way of writing results takes as long to compile.
        source = _PAST_CACHES.sub("const bool past = false;", source)
        bodies.append(f"namespace in_{step.name} {{\n{_INCLUDE.sub('', source)}\n}}\n")
    for name, text in headers.items():
        (folder / name).write_text(text)
    source, made = folder / f"all.{suffix}", folder / "all.so"
    source.write_text("".join(includes) + "".join(bodies))
    flags = (*CPU_FLAGS, *_CPU_VALUES) if device is Device.CPU else CUDA_FLAGS
    done = subprocess.run([*flags, str(source), "-o", str(made)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    library = ctypes.CDLL(str(made))
    return {step.name: launcher_of(library, step) for step in steps}


def results(one: Planned, launchers: dict[str, Any], model: Any, inputs: list[Any], device: Device) -> list[Any]:
    """Returns the results of a graph's kernels in their default setting."""
    buffers = given_buffers(one.graph, model, inputs, device.value)
    for step in one.steps:
        call_step(step, launchers[step.name], buffers, 0, device.value)
    if device is Device.CUDA:
        torch.cuda.synchronize()
    return [buffers[name] for name in one.returned]


def compared(cases: Sequence[tuple[Any, list[Any]]], device: Device) -> list[list[tuple[Any, Any, Any]]]:
    """For each module or function with its inputs: its results as the kernels, eager and float64 make them."""
    taken = set[str]()
    plans = [planned(rewrite(graph_of(model, inputs)).graph, device, taken) for model, inputs in cases]
    launchers = compiled(plans, device)
    found = []
    for (model, inputs), one in zip(cases, plans, strict=True):
        given = [x.to(device.value) for x in inputs]
        ours = results(one, launchers, torch.nn.Module(), given, device)
        wide = [x.double() if x.is_floating_point() else x for x in given]
        found.append(list(zip(ours, flat(model(*given)), flat(model(*wide)), strict=True)))
    return found
