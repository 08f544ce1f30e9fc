"""Every kind of generated CUDA kernel compiles, without spilling registers but for those with special functions, which
take far longer than a few spills, and names nothing that a value may be called. Needs nvcc, no GPU."""

from __future__ import annotations

import functools
import itertools
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.stack import find_nvcc
from cuda_agent.playbook.codegen import kernel_files
from cuda_agent.playbook.planner import plan
from cuda_agent.playbook.skills.recurrent.skill import kernel, steps_kernel
from playbook_cases import FOLDED, POINTWISE, REDUCTIONS, SCANS, WINDOWS
from playbook_harness import CUDA_FLAGS, check_names, graph_of_case, printed

NVCC = find_nvcc()
pytestmark = [pytest.mark.integration, pytest.mark.skipif(NVCC is None, reason="no nvcc")]

CASES = {**POINTWISE, **REDUCTIONS, **WINDOWS, **SCANS, **FOLDED}
LAYERS = [(0, 20), (0, 256), (0, 1024), (1, 512), (3, 4096)]
#: cases whose kernels are compiled in one go: CUDA's and our headers take several times as long as one of them.
TOGETHER = 24
#: for special functions, of which no number of registers is asked: a tenth of the time.
QUICK = ("-Xcicc", "-O1", "-Xptxas", "-O1")


class Source(NamedTuple):
    """A `.cu`, its name in names, and the headers beside it."""

    name: str
    text: str
    headers: Mapping[str, str]

    @property
    def includes(self) -> tuple[str, ...]:
        return tuple(re.findall(r"^#\s*include.*", self.text, re.MULTILINE))


class Compiled(NamedTuple):
    fault: str
    #: what the assembler says of the source's kernels and of what they call.
    frames: Sequence[str]


@pytest.mark.parametrize("name", CASES)
def test_kernels_compile(name: str) -> None:
    first = list(CASES).index(name) // TOGETHER * TOGETHER
    for source, compiled in _cases(first)[name]:
        no_spills(source, compiled)


@pytest.mark.parametrize(("kind", "hidden"), LAYERS)
def test_recurrent_layers_compile(kind: int, hidden: int) -> None:
    source, compiled = _layers()[kind, hidden]
    no_spills(source, compiled)
    assert all(line.split()[0] == "0" for line in compiled.frames), compiled.frames


def no_spills(source: Source, compiled: Compiled) -> None:
    assert not compiled.fault, f"{compiled.fault}\n{source.text}"
    # A call of a slow path (a division, an assertion) may save two registers; more of them are a loop that doesn't fit.
    spills = [line for line in compiled.frames if int(line.split("frame, ")[1].split()[0]) > 8]
    assert "kernels/special.cuh" in source.headers or not spills, spills[:3]


@functools.cache
def _cases(first: int) -> Mapping[str, Sequence[tuple[Source, Compiled]]]:
    sources: dict[str, list[Source]] = {}
    for name, (function, inputs) in itertools.islice(CASES.items(), first, first + TOGETHER):
        model = function.eval() if hasattr(function, "eval") else function
        steps = printed(plan(graph_of_case(model, inputs), Device.CUDA, Precision.FP32)[0])
        sources[name] = [source_of(step.name, step.files) for step in steps]
        for step, source in zip(steps, sources[name], strict=True):
            check_names(step, source.text)
    compiled = iter(compile_together([source for found in sources.values() for source in found]))
    return {name: [(source, next(compiled)) for source in found] for name, found in sources.items()}


@pytest.mark.parametrize("kind", range(4))
def test_recurrent_steps_compile(kind: int) -> None:
    source = source_of(f"recurrent_steps_{kind}", kernel_files(Device.CUDA, "steps", steps_kernel(kind)))
    no_spills(source, *compile_together([source]))


@functools.cache
def _layers() -> Mapping[tuple[int, int], tuple[Source, Compiled]]:
    files = [kernel_files(Device.CUDA, "layer", kernel(*layer, Device.CUDA)) for layer in LAYERS]
    sources = [source_of(f"recurrent_{kind}_{hidden}", f) for (kind, hidden), f in zip(LAYERS, files, strict=True)]
    return dict(zip(LAYERS, zip(sources, compile_together(sources), strict=True), strict=True))


def source_of(name: str, files: Mapping[str, str]) -> Source:
    (path,) = (path for path in files if path.endswith(".cu"))
    return Source(name, files[path], {at: text for at, text in files.items() if at != path})


def compile_together(sources: Sequence[Source]) -> list[Compiled]:
    """Those that include the same are one source, each in a namespace of its own; one by one where that doesn't
    compile."""
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for at, source in enumerate(sources):
        alike[source.includes, *sorted(source.headers.items())].append(at)
    found: dict[int, Compiled] = {}
    for places in alike.values():
        group = [sources[at] for at in places]
        compiled = _compile(group)
        if any(one.fault for one in compiled):
            compiled = [result for source in group for result in _compile([source])]
        found |= zip(places, compiled, strict=True)
    return [found[at] for at in range(len(sources))]


def _compile(sources: Sequence[Source]) -> list[Compiled]:
    spaces = [f"source_{at}_of_{len(sources)}" for at in range(len(sources))]
    texts = [*sources[0].includes]
    for source, space in zip(sources, spaces, strict=True):
        _check_global_names(source)
        text = re.sub(r"^#\s*include.*", "", source.text, flags=re.MULTILINE)
        text = text.replace(f"launch_{source.name}", f"launch_{space}")
        texts.append(f"namespace {space} {{\n{text}\n}}")
    with tempfile.TemporaryDirectory() as folder:
        for path, text in {**sources[0].headers, "kernels/all.cu": "\n".join(texts)}.items():
            (Path(folder) / path).parent.mkdir(exist_ok=True)
            (Path(folder) / path).write_text(text)
        quick = QUICK if "kernels/special.cuh" in sources[0].headers else ()
        command = [
            str(NVCC),
            *CUDA_FLAGS[1:4],
            "-std=c++17",
            "-cubin",
            "-Xptxas",
            "-v",
            *quick,
            f"{folder}/kernels/all.cu",
        ]
        done = subprocess.run([*command, "-o", f"{folder}/x.cubin"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return [Compiled(done.stderr[:3000], ())] * len(sources)
    of: dict[str, list[str]] = {space: [] for space in spaces}
    for function, frame in re.findall(r"Function properties for (\w+)\n\s*(.*)", done.stderr):
        for space in [space for space in spaces if f"{len(space)}{space}" in function] or spaces:
            of[space].append(frame)
    assert all(of.values()), done.stderr
    return [Compiled("", of[space]) for space in spaces]


def _check_global_names(source: Source) -> None:
    """What a source says outside of functions hides nothing of our headers: in a namespace it could. They ask for a
    `merge` of each state."""
    lines = [line for line in source.text.splitlines() if re.match(r"using|struct|constexpr|(?:__\w+__ )*void", line)]
    names = {name for line in lines for name in re.findall(r"(\w+)(?: =| \{|\()", line)} - {
        "__launch_bounds__",
        "merge",
    }
    words = set(re.findall(r"\w+", re.sub(r"//[^\n]*", "", "\n".join(source.headers.values()))))
    assert names and not names & words, names & words
