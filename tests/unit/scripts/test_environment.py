"""The Makefile's environment: what it reads from pyproject.toml and constraints.txt, and what it says is missing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def environment() -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment", ROOT / "scripts" / "environment.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_torch_bounds_hold_the_pinned_version(environment: ModuleType) -> None:
    low, high = environment.torch_bounds()
    pinned = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    assert low <= (2, 11) < (2, 13) < high
    assert low <= environment.numbers(pinned) < high
    assert environment.numbers("2.11.0+cu130") == (2, 11, 0)


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    own = [re.fullmatch(r"cuda-agent\[(.*)\]", entry) for entry in extras["dev"]]
    included = [name for match in own if match for name in match.group(1).split(",")]
    wanted = project["dependencies"] + extras["dev"] + [entry for name in included for entry in extras[name]]
    names = {re.split(r"[>=\[ ]", entry)[0] for entry in wanted} - {"cuda-agent"}
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert names <= pinned


def test_inherited_packages_are_not_pinned(environment: ModuleType, tmp_path: Path) -> None:
    assert "pytest==" in environment.constraints(tmp_path, False).read_text()
    assert "pytest==" not in environment.constraints(tmp_path, True).read_text()


def test_inherited_tools_have_their_commands(environment: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    environment.add_commands(tmp_path)
    for name in environment.TOOLS:
        command = [str(tmp_path / "bin" / name), "--help" if name == "lint-imports" else "--version"]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0, name


def test_missing_compiler_is_one_line_with_the_remedy(environment: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(environment.SetupError, match="Install g\\+\\+"):
        environment.check_machine()


def test_missing_sandbox_is_only_a_notice(
    environment: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert any("bubblewrap" in notice for notice in environment.check_machine())
