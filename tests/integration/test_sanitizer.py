"""The way of a candidate to compute-sanitizer and back. The tool needs a GPU, so a script stands in its place that runs
what it is given and prints a report; see tests/gpu for the tool itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent.core.assets import program
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.judge.inspection import sanitizer
from cuda_agent.judge.inspection.traced import write_call
from cuda_agent.judge.session import JudgeSession
from judge_specimens import HONEST, TASK, eager_only, specimen

pytestmark = pytest.mark.integration

STAND_IN = """#!/bin/sh
while [ "$1" != "-P" ]; do last="$1"; shift; done
echo "========= COMPUTE-SANITIZER"
"$last" "$@"
code=$?
echo "========= ERROR SUMMARY: 0 errors"
exit $code
"""


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    with JudgeSession(TASK, JudgeOptions(device=Device.CPU)) as found:
        yield eager_only(found)


def test_a_call_from_files(session: JudgeSession, tmp_path: Path) -> None:
    right = "assert x.shape == (64, 256) and self.scale.mean() != 1, 'drawn anew'\nreturn self.right(x, y)"
    write_call(session, specimen(right), None, tmp_path)
    done = subprocess.run(
        program("cuda_agent.workers.inside.once", str(tmp_path)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_in_its_sandbox(session: JudgeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "toolkit" / "bin" / "compute-sanitizer"
    tool.parent.mkdir(parents=True)
    tool.write_text(STAND_IN)
    tool.chmod(0o755)
    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: tool)
    assert sanitizer.run_tool(session, HONEST, None, "memcheck") == []
    (failed,) = sanitizer.run_tool(session, specimen("raise ValueError('as planned')"), None, "racecheck")
    assert failed.rule == "racecheck" and "ValueError: as planned" in failed.detail
    monkeypatch.setattr(sanitizer, "TIMEOUT_S", 6.0)
    (hung,) = sanitizer.run_tool(session, specimen("import time\nwhile True: time.sleep(1)"), None, "memcheck")
    assert "no result within 6 s" in hung.detail
    assert not list(session.directory.glob("sanitize-*")), "nothing is left"
