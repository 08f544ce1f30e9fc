"""What the checks of the house read, and how they report what they find."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "src" / "cuda_agent"
#: the files of a workspace, which the author of a candidate reads.
NOT_OURS = PACKAGE / "workspace" / "files"


@dataclass(frozen=True)
class Module:
    """One module of the package; `path` is relative to the package's folder."""

    path: str
    text: str
    tree: ast.Module


@cache
def modules() -> tuple[Module, ...]:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if NOT_OURS not in path.parents]
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in paths}
    return tuple(Module(path, text, ast.parse(text)) for path, text in texts.items())


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def report(findings: Iterable[tuple[str, str]]) -> None:
    """Fails with one line per finding, given as (place, remedy)."""
    lines = [f"{place}: {remedy}" for place, remedy in findings]
    assert not lines, "\n" + "\n".join(lines)
