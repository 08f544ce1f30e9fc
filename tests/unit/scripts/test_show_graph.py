"""scripts/show_graph.py prints a task's graph, or the task's error."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from capture_modules import CASES

SPEC = importlib.util.spec_from_file_location("show_graph", Path(__file__).parents[3] / "scripts" / "show_graph.py")


def test_show_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert SPEC is not None and SPEC.loader is not None
    script = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(script)
    path = tmp_path / "task.py"
    path.write_text(CASES["swiglu"])
    assert script.main([str(path)]) == 0
    assert "aten.linear.default(x, p_gate_weight)" in capsys.readouterr().out
    path.write_text("def")
    assert script.main([str(path)]) == 3
