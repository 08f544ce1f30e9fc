"""The static rules: they read a candidate's texts, the preprocessor's output and the object files, and run nothing.

Each layer can convict a candidate and none can acquit it. Before the build, the guard reads the syntax tree of
`model_new.py` and the directives of the C++ and CUDA files. After the build, it reads names and declarations in the
preprocessed text, the imported symbols and the needed libraries.
"""

from collections.abc import Mapping
from pathlib import Path

from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate, Violation
from cuda_agent.judge.guard.directives import check_directives
from cuda_agent.judge.guard.preprocessed import MOST_TEXT, Compiled
from cuda_agent.judge.guard.python_tree import check_module
from cuda_agent.judge.guard.source import check_preprocessed
from cuda_agent.judge.guard.symbols import check_library, check_symbols
from cuda_agent.judge.guard.triton import check_comparison, is_comparison

#: the file beside an object file in which the compiler leaves a `Compiled` for the guard.
COMPILED = "compiled.json"


def check_texts(candidate: Candidate) -> tuple[Violation, ...]:
    """Returns every rule that the texts break as they are written, with file and line."""
    found: list[Violation] = []
    for path in sorted(candidate.files):
        text = candidate.files[path]
        found += check_module(text, path) if path == "model_new.py" else check_directives(text, path)
    return tuple(found)


def check_built(
    candidate: Candidate, objects: Mapping[str, Path], library: Path, device: Device
) -> tuple[Violation, ...]:
    """Returns every broken rule that only compiling makes visible. `objects` maps each of the candidate's own sources
    to its object file. Raises DeviceError when binutils are missing."""
    found: list[Violation] = []
    for source, path in objects.items():
        found += check_preprocessed(Compiled.load(path.with_name(COMPILED)).passes, candidate, source, device)
    return (*found, *check_symbols(objects, device), *check_library(library))


def own_kernels(objects: Mapping[str, Path]) -> frozenset[str]:
    """Returns the mangled names of all kernels that the candidate's own sources define."""
    return frozenset(name for path in objects.values() for name in Compiled.load(path.with_name(COMPILED)).kernels)


__all__ = [
    "COMPILED",
    "MOST_TEXT",
    "Compiled",
    "check_built",
    "check_comparison",
    "check_texts",
    "is_comparison",
    "own_kernels",
]
