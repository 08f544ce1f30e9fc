"""doctor probes by doing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cuda_agent.cli.main import run

pytestmark = pytest.mark.integration


def test_it_says_what_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if any(found["devices"].values()) else 4)
    probes = {probe["name"]: probe for probe in found["probes"]}
    assert {"python", "torch", "g++", "nvcc", "GPU", "driver", "sandbox", "memory", "disk"} <= set(probes)
    for probe in probes.values():
        assert probe["state"] in ("ok", "limited", "missing")
        assert probe["state"] == "ok" or probe["remedy"], "what is missing has a remedy"


def test_without_a_compiler_nothing_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "g++")
    assert run(["doctor"]) == 4
    printed = capsys.readouterr().out
    assert "apt-get install g++" in printed
    assert "cpu jobs: can not run" in printed
