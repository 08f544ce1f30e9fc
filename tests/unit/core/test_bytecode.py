"""Compiled Python in a folder of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.core import bytecode


def test_one_process_fills_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode, "folder", lambda: tmp_path)
    monkeypatch.setattr(bytecode, "modules", lambda: ["no_such_module", "json.tool"])
    first = bytecode.fill()
    assert first is not None and bytecode.fill() is None, "another process is at it"
    assert first.wait(30) == 0 and list(tmp_path.rglob("tool.*.pyc"))
    assert bytecode.fill() is None, "it is complete"


def test_what_was_cut_short_is_filled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode, "folder", lambda: tmp_path)
    monkeypatch.setattr(bytecode, "modules", lambda: ["json.tool"])
    first = bytecode.fill()
    assert first is not None
    first.kill()
    first.wait()
    (tmp_path / "complete").unlink(missing_ok=True)
    again = bytecode.fill()
    assert again is not None and again.wait(30) == 0 and (tmp_path / "complete").exists()


def test_beside_its_sources_nothing_is_to_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode, "folder", lambda: None)
    assert bytecode.fill() is None and bytecode.environment() == {}
