"""The examples keep what they promise: parse, run, are deterministic, can be told from null answers."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

FILES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
BOTH = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
TOLERANCE = 1e-2


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outputs(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def accepted(answer: list[Any], right: list[Any]) -> bool:
    pairs = zip(answer, right, strict=True)
    return all(torch.allclose(a.float(), b.float(), atol=TOLERANCE, rtol=TOLERANCE) for a, b in pairs)


def test_there_are_enough_examples() -> None:
    texts = [path.read_text() for path in FILES]
    assert len(FILES) >= 13
    assert sum("torch.bfloat16" in text for text in texts) >= 4


@BOTH
def test_states_its_computation_and_needs_only_torch(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert len(ast.get_docstring(tree) or "") > 40
    modules = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert modules <= {"torch", "torch.nn", "torch.nn.functional", "math"}


@BOTH
@torch.no_grad()
def test_null_answers_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    task = load(path)
    torch.manual_seed(0)
    model = task.Model(*task.get_init_inputs()).eval()
    mine, other = task.get_inputs(), task.get_inputs()
    right, again, different = outputs(model(*mine)), outputs(model(*mine)), outputs(model(*other))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in right)
    assert all(torch.equal(a, b) for a, b in zip(right, again, strict=True))
    for answer in (different, [torch.zeros_like(t) for t in right], [torch.full_like(t, t.mean()) for t in right]):
        assert not accepted(answer, right)
