"""report and audit as commands: files, documents, errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cuda_agent.cli.main import run
from cuda_agent.core.bench import Audits
from report_runs import bench_directory


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench_directory(tmp_path_factory.mktemp("bench") / "it's a run")


def test_a_report_lies_in_the_run_and_says_so(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(bench), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kind"] == "bench" and said["tasks"] == 21 and said["to_check"] == said["unspoken"] > 3
    assert Path(said["file"]) == bench / "report.html" and (bench / "report.html").stat().st_size == said["bytes"]
    assert "hasn't ended" in said["notes"][0]


def test_verdicts_are_recorded_and_listed(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--task", "swiglu", "--verdict", "sound", "--note", "the algebra is exact", "--by", "me", "--json"]
    assert run(["audit", str(bench), *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["audit"]["verdict"] == "sound"
    assert Audits.read(bench).audits[0].note == "the algebra is exact"
    assert run(["audit", str(bench)]) == 0
    shown = capsys.readouterr().out
    assert "sound (me): the algebra is exact" in shown and re.search(r"\d{3}× over eager", shown)
    assert run(["audit", str(bench), "--json"]) == 0
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    assert next(task for task in tasks if task["task"] == "swiglu")["audit"]["by"] == "me"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["report", "nowhere"], 2, "There is no folder nowhere"),
        (["report", "{run}", "--out", "{run}"], 2, "is a folder"),
        (["report", "{run}", "--out", "/proc/no/page.html"], 6, "Can't write /proc/no/page.html"),
        (["audit", "{run}", "--task", "swiglu"], 2, "--task without --verdict"),
        (["audit", "{run}", "--verdict", "sound"], 2, "--verdict without --task"),
        (["audit", "{run}", "--task", "swigl", "--verdict", "sound"], 2, "Did you mean swiglu?"),
    ],
)
def test_errors_are_one_line(
    bench: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    assert run([argument.format(run=bench) for argument in arguments]) == code
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
