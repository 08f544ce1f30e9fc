"""Runs the kernels of many graphs that share a few compiles: every source is a namespace of one translation unit."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Graph
from cuda_agent.playbook.plan import Step
from cuda_agent.playbook.planner import plan
from playbook_harness import CPU_FLAGS, CUDA_FLAGS, call_step, given_buffers, printed

#: the judge's flags for kernels that change values.
_CPU_VALUES = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-w")
_INCLUDE = re.compile(r"^#include .*\n", re.MULTILINE)


@dataclass(frozen=True)
class Planned:
    """A graph with the steps that compute it. `returned` are the buffers of its results."""

    graph: Graph
    steps: tuple[Step, ...]
    returned: tuple[str, ...]


def planned(graphs: Sequence[Graph], device: Device) -> list[Planned]:
    """Plans the graphs, with another name for every kernel. Raises NotCovered."""
    found, taken = [], list[str]()
    for graph in graphs:
        steps, state = plan(graph, device, Precision.FP32, taken=taken)
        taken += dict.fromkeys(step.name for step in steps)
        found.append(Planned(graph, steps, state.returned))
    return found


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
        bodies.append(f"namespace in_{step.name} {{\n{_INCLUDE.sub('', source)}\n}}\n")
    for name, text in headers.items():
        (folder / name).write_text(text)
    source, made = folder / f"all.{suffix}", folder / "all.so"
    source.write_text("".join(includes) + "".join(bodies))
    flags = (*CPU_FLAGS, *_CPU_VALUES) if device is Device.CPU else CUDA_FLAGS
    done = subprocess.run([*flags, str(source), "-o", str(made)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    library = ctypes.CDLL(str(made))
    return {step.name: getattr(library, f"launch_{step.name}") for step in steps}


def results(one: Planned, launchers: dict[str, Any], model: Any, inputs: list[Any], device: Device) -> list[Any]:
    """Returns the results of a graph's kernels in their default setting."""
    buffers = given_buffers(one.graph, model, inputs, device.value)
    for step in one.steps:
        call_step(step, launchers[step.name], buffers, 0, device.value)
    if device is Device.CUDA:
        torch.cuda.synchronize()
    return [buffers[name] for name in one.returned]
