"""Checks of the source's structure: circles, sizes of functions and folders, docstrings. A finding names its place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import grimp

SOURCE = Path(__file__).resolve().parents[2] / "src" / "cuda_agent"
#: files of a workspace, which a candidate's author reads.
NOT_OURS = SOURCE / "workspace" / "files"
MOST_MODULES, MOST_LINES, MOST_FUNCTION_LINES = 20, 430, 80


def modules() -> Iterator[tuple[Path, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        if NOT_OURS not in path.parents:
            yield path.relative_to(SOURCE), path.read_text()


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and under TYPE_CHECKING count too."""
    graph = grimp.build_graph("cuda_agent", cache_dir=None)
    reached = {module: graph.find_upstream_modules(module) for module in graph.modules}
    circles = sorted({tuple(sorted((a, b))) for a in reached for b in reached[a] if a in reached[b]})
    assert circles == [], "open these circles, such as by a module of shared names"


def test_sizes() -> None:
    found = []
    for path, text in modules():
        if text.count("\n") > MOST_LINES:
            found.append(f"{path}: {text.count(chr(10))} lines, split it")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_FUNCTION_LINES:
                    found.append(f"{path}:{node.lineno}: {node.name} has {lines} lines, split it")
    assert found == []


def test_no_folder_has_too_many_modules() -> None:
    """`__init__` doesn't count."""
    folders = {path.parent for path, _ in modules()}
    names = {folder: [p for p, _ in modules() if p.parent == folder and p.name != "__init__.py"] for folder in folders}
    assert {str(folder): len(found) for folder, found in names.items() if len(found) > MOST_MODULES} == {}
