"""Runs the playbook's kernels without a binding: compiles each step's source and calls its launcher through ctypes."""

from __future__ import annotations

import atexit
import copy
import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Graph, ValueKind
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Options, Step
from cuda_agent.playbook.planner import plan
from cuda_agent.workers.buffers import is_dense
from cuda_agent.workers.inside.graph.capture import capture

CPU_FLAGS = ("g++", "-O3", "-march=native", "-fopenmp", "-std=c++17", "-shared", "-fPIC", "-Wall", "-Wno-unused")
#: parameters of small functions and members, which hide nothing.
_OTHER_SCOPES = {"x", "y", "a", "b", "r", "g"}
CUDA_FLAGS = ("nvcc", "-O3", "--use_fast_math", "-arch=sm_90a", "-std=c++17", "-shared", "-Xcompiler", "-fPIC")


class Lambda(torch.nn.Module):
    """A module around a function, for captures."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def graph_of(model: Any, inputs: list[Any]) -> Graph:
    model = model if isinstance(model, torch.nn.Module) else Lambda(model)
    return capture(model.eval(), inputs, types.SimpleNamespace(Model=type(model)))  # type: ignore[arg-type]


_graphs: dict[tuple[int, int], tuple[Any, list[Any], Graph]] = {}


def graph_of_case(model: Any, inputs: list[Any]) -> Graph:
    """`graph_of` a module or function and inputs on the host that outlive the tests, captured once for all devices:
    that takes longer than to compile what comes of it."""
    key = id(model), id(inputs)
    if key not in _graphs:
        _graphs[key] = model, inputs, graph_of(model, inputs)
    return _graphs[key][2]


def printed(steps: Sequence[Step]) -> list[Step]:
    """The first step of each kernel."""
    return list({step.name: step for step in reversed(steps)}.values())


def compile_step(step: Step, directory: Path, device: Device) -> Any:
    """The step's launcher as a ctypes function."""
    (directory / "kernels").mkdir(parents=True, exist_ok=True)
    for path, text in step.files.items():
        (directory / path).write_text(text)
    source = next(path for path in step.files if path.endswith((".cpp", ".cu")))
    check_names(step, step.files[source])
    called, defined = _parameters(step.declaration), _parameters(step.files[source], f"launch_{step.name}")
    assert [name.removeprefix(f"{step.name}_") for name in called] == defined
    library = directory / f"{step.name}.so"
    flags = CPU_FLAGS if device is Device.CPU else CUDA_FLAGS
    header = re.match(r'(?://[^\n]*\n)*#include "(\w+\.h)"\n', step.files[source]) if device is Device.CPU else None
    made = directory / "kernels" / f"{header[1]}.gch" if header else None
    if header and made and not made.exists():
        made.symlink_to(_precompiled(header[1], step.files[f"kernels/{header[1]}"]))
    done = subprocess.run(
        [*flags, str(directory / source), "-o", str(library)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stderr[:3000]}\n{(directory / source).read_text()}"
    return launcher_of(ctypes.CDLL(str(library)), step)


def launcher_of(library: ctypes.CDLL, step: Step) -> Any:
    """A step's launcher in a library that has it."""
    function = getattr(library, f"launch_{step.name}")
    function.restype = ctypes.c_int if step.declaration.startswith('extern "C" int') else None
    return function


@functools.cache
def _precompiled(name: str, text: str) -> Path:
    """A kernel's first header, made once: it takes longer than most kernels, and changes nothing of the library."""
    folder = Path(tempfile.mkdtemp(prefix="cuda-agent-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / name).write_text(text)
    command = [*CPU_FLAGS, "-w", "-x", "c++-header", str(folder / name), "-o", str(folder / f"{name}.gch")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / f"{name}.gch"


def check_names(step: Step, text: str) -> None:
    """No value of a graph may be called as anything that the source itself names."""
    plain = re.sub(r'//[^\n]*|"[^"]*"', "", text)
    ours = {cpp_name(name) for name in (*step.inputs, *(b.name for b in (*step.outputs, *step.scratch)))}
    words = set(re.findall(r"(?<![\w.])(?<!->)[A-Za-z_]\w*", plain)) - ours - _OTHER_SCOPES
    words = {word for word in words if not word.startswith((step.name, "f_"))}
    assert not [word for word in sorted(words) if cpp_name(word) == word], text


def _parameters(text: str, name: str = r"launch_\w+") -> list[str]:
    """Names of a launcher's parameters in order: a caller that has another order compiles too."""
    found = re.search(rf'extern "C" (?:void|int) {name}\(([^)]*)\)', text)
    assert found is not None, text
    return [one.split()[-1].lstrip("*") for one in found[1].split(",")]


def run_steps(
    graph: Graph,
    model: Any,
    inputs: list[Any],
    device: Device,
    every_setting: bool = False,
    written_out: bool = False,
) -> Iterator[tuple[Any, ...]]:
    """(setting, outputs, steps) of the generated kernels: for the default setting, or for every one."""
    steps, state = plan(graph, device, Precision.FP32, Options(written_out=written_out))
    place = "cuda" if device is Device.CUDA else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        functions = {step.name: compile_step(step, Path(folder), device) for step in printed(steps)}
        settings = max((n for step in steps for n in step.tunables.values()), default=1) if every_setting else 1
        for setting in range(settings):
            buffers = given_buffers(graph, model, inputs, place)
            for step in steps:
                call_step(step, functions[step.name], buffers, setting, place)
            if device is Device.CUDA:
                torch.cuda.synchronize()
            yield setting, [buffers[name] for name in state.returned], steps


def given_buffers(graph: Graph, model: Any, inputs: list[Any], place: str) -> dict[str, Any]:
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    buffers: dict[str, Any] = {}
    for item in graph.inputs:
        if item.kind is ValueKind.INPUT:
            assert item.position is not None
            buffers[item.name] = inputs[item.position]
        elif item.target in weights:
            buffers[item.name] = weights[item.target]
        elif item.values is not None:
            value = torch.tensor(item.values, dtype=torch.float64).to(getattr(torch, item.meta.dtype))
            buffers[item.name] = value.view(item.meta.shape).to(place)
    return buffers


def call_step(step: Step, function: Any, buffers: dict[str, Any], setting: int, place: str) -> None:
    for buffer in (*step.outputs, *step.scratch):
        meta = buffer.meta
        made = torch.empty_strided(meta.shape, meta.strides, dtype=getattr(torch, meta.dtype), device=place)
        made.untyped_storage().fill_(0xA5)
        buffers[buffer.name] = made
    names = [*step.inputs, *(b.name for b in step.outputs), *(b.name for b in step.scratch)]
    places = [buffers[name].data_ptr() + step.shifts.get(name, 0) for name in names]
    arguments: list[Any] = [ctypes.c_void_p(at) for at in places]
    arguments.append(ctypes.c_int(setting % max(step.tunables.values(), default=1)))
    if place == "cuda":
        arguments.append(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    status = function(*arguments)
    if status:
        raise IndexError(f"{step.name}: {status}")


def check(
    model: Any,
    inputs: list[Any],
    device: Device = Device.CPU,
    tolerance: float = 3e-6,
    every_setting: bool = False,
    written_out: bool = False,
) -> list[Step]:
    """Compare with torch in float64; the error may be `tolerance` or four times eager's own (relative L2). Returns the
    steps."""
    place = "cuda" if device is Device.CUDA else "cpu"
    graph = graph_of_case(model, inputs) if device is Device.CPU else None
    inputs = [x.to(place) if isinstance(x, torch.Tensor) else x for x in inputs]
    model = copy.deepcopy(model) if isinstance(model, torch.nn.Module) else Lambda(model)
    model = model.to(place).eval()
    graph = graph or graph_of(model, inputs)
    with torch.no_grad():
        eager = flat(model(*inputs))
        wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]
        exact = flat(copy.deepcopy(model).double()(*wide))
    steps: list[Step] = []
    for setting, ours, steps in run_steps(graph, model, inputs, device, every_setting, written_out):
        text = "\n".join(f"--- {p}\n{t}" for s in steps for p, t in s.files.items() if s.name in p)
        for mine, plain, truth, name in zip(ours, eager, exact, graph.outputs, strict=True):
            _compare(mine, plain, truth, tolerance, f"setting {setting}\n{text}")
            _check_layout(mine, graph, name, text)
    return steps


def _compare(mine: Any, plain: Any, truth: Any, tolerance: float, text: str) -> None:
    assert (mine.shape, mine.dtype) == (plain.shape, plain.dtype), text
    if not plain.is_floating_point():
        assert torch.equal(mine, plain), text
        return
    # What eager's own type has no number for, as the judge compares it.
    odd = ~plain.isfinite()
    assert ((mine == plain) | (mine.isnan() & plain.isnan()))[odd].all(), f"infinite or NaN otherwise, {text}"
    mine, plain, truth = (value.masked_fill(odd, 0.0) for value in (mine, plain, truth))
    floor = {torch.bfloat16: 4e-3, torch.float16: 5e-4}.get(mine.dtype, tolerance)
    error, budget = _error(mine, truth), max(4 * _error(plain, truth), floor)
    assert error <= budget, f"error {error:.3g}, eager {_error(plain, truth):.3g}, {text}"


def _check_layout(mine: Any, graph: Graph, name: str, text: str) -> None:
    """Whoever reads an output finds it in memory as the graph says."""
    metas = {node.name: node.outputs[0] for node in graph.nodes if len(node.outputs) == 1}
    meta = metas.get(name)
    if meta is not None and is_dense(meta):
        strides = [(a, b) for a, b, size in zip(mine.stride(), meta.strides, meta.shape, strict=True) if size != 1]
        assert all(a == b for a, b in strides), (name, strides, text)


def flat(value: Any) -> list[Any]:
    return [value] if isinstance(value, torch.Tensor) else [x for item in value for x in flat(item)]


def _error(a: Any, truth: Any) -> float:
    a, truth = a.double(), truth.double()
    same = a == truth
    a, truth = torch.where(same, 0.0, a), torch.where(same & ~truth.isfinite(), 0.0, truth)
    difference = torch.where(same, 0.0, a - truth)
    return float(difference.norm() / (truth.norm() + 1e-30))
