"""What can be read off a candidate without running it: its texts, what the preprocessor made of them, its objects.

The layers convict and never acquit. Before the build: the syntax tree of `model_new.py`, the directives of C++ and CUDA
files. After it: names and declarations in preprocessed text, imported symbols, needed libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate, Violation
from cuda_agent.judge.guard.directives import check_directives
from cuda_agent.judge.guard.preprocessed import Compiled
from cuda_agent.judge.guard.python_tree import check_module
from cuda_agent.judge.guard.source import check_preprocessed
from cuda_agent.judge.guard.symbols import check_library, check_symbols, forbidden_symbol
from cuda_agent.judge.guard.triton import check_comparison, is_comparison

#: what a compile leaves for the guard beside the object file: a `Compiled`.
COMPILED = "compiled.json"


def check_texts(candidate: Candidate) -> tuple[Violation, ...]:
    """Every broken rule that the texts show as they are written, with file and line."""
    found: list[Violation] = []
    for path in sorted(candidate.files):
        text = candidate.files[path]
        found += check_module(text, path) if path == "model_new.py" else check_directives(text, path)
    return tuple(found)


def check_built(
    candidate: Candidate, objects: Mapping[str, Path], library: Path, device: Device
) -> tuple[Violation, ...]:
    """Every broken rule that compiling made visible. `objects`: source path -> object file of the candidate's own.

    Raises DeviceError when binutils are missing.
    """
    found: list[Violation] = []
    for source, path in objects.items():
        found += check_preprocessed(Compiled.load(path.with_name(COMPILED)).passes, candidate, source, device)
    return (*found, *check_symbols(objects, device), *check_library(library))


def own_kernels(objects: Mapping[str, Path]) -> frozenset[str]:
    """Mangled names of all kernels that the candidate's own sources define."""
    return frozenset(name for path in objects.values() for name in Compiled.load(path.with_name(COMPILED)).kernels)


__all__ = [
    "COMPILED",
    "Compiled",
    "check_built",
    "check_comparison",
    "check_library",
    "check_preprocessed",
    "check_symbols",
    "check_texts",
    "forbidden_symbol",
    "is_comparison",
    "own_kernels",
]
