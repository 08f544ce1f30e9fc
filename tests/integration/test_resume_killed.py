"""SIGKILL at random moments of a run of 40 turns: resumed, it ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.agent.storage.store import ContentStore
from cuda_agent.agent.storage.transcript import read_transcript
from cuda_agent.core.records import RunManifest, Trajectory, Turn
from integration.killed_runs import TURNS

HERE = Path(__file__).parent
_MEASURED = re.compile(r"\d+\.\d+ s \(\d+ compiled, \d+ from the cache\)")


def comparable(turn: Turn) -> dict[str, Any]:
    """A turn without what was measured."""
    data = turn.model_dump(mode="json")
    del data["duration_s"]
    data["budget"] = {key: value for key, value in data["budget"].items() if key not in ("wall_s", "judge_s")}
    for result in data["results"]:
        del result["duration_s"]
        result["text"] = _MEASURED.sub("…", result["text"])
        result["data"].pop("duration_s", None)
    return data


def start(directory: Path, verb: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(HERE / "killed_runs.py"), str(directory), verb]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    # A session of its own: nothing of it may outlive the kill, and nobody else's processes are looked at.
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True)


def undisturbed(directory: Path) -> tuple[list[dict[str, Any]], float]:
    """The turns of a whole run, and how long it took after its first request."""
    process = start(directory, "begin")
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors.decode()
    turns = read_transcript(directory)
    return [comparable(turn) for turn in turns], sum(turn.duration_s for turn in turns if not _compiles(turn))


def _compiles(turn: Turn) -> bool:
    return any(call.tool == "Compile" for call in turn.calls)


def killed(directory: Path, moments: int, span_s: float, seed: int) -> int:
    """Kill the run so many times, after a random share of `span_s` of work each time; then let it end. How often it
    really was killed: it may come to its end before."""
    draw = random.Random(seed)
    requests = directory.with_suffix(".requests")
    for number in range(moments):
        before = requests.stat().st_size if requests.exists() else 0
        process = start(directory, "begin" if number == 0 else "resume")
        # Some kills hit the start, most the work.
        deadline = time.monotonic() + (draw.uniform(0.5, 4.0) if draw.random() < 0.2 else 120.0)
        while process.poll() is None and time.monotonic() < deadline:
            if requests.exists() and requests.stat().st_size > before:
                break
            time.sleep(0.005)
        time.sleep(draw.uniform(0.0, span_s / moments))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode == 0:
            return number
    process = start(directory, "resume")
    _, errors = process.communicate(timeout=400)
    text = errors.decode()
    assert process.returncode == 0 or "has ended: finished" in text, text
    return moments


def check(directory: Path, expected: list[dict[str, Any]], kills: int) -> None:
    turns = read_transcript(directory)
    assert [turn.index for turn in turns] == list(range(TURNS))
    for turn, wanted in zip(turns, expected, strict=True):
        assert comparable(turn) == wanted
    run = Trajectory.read(directory)
    assert run.outcome == "finished" and run.turns == turns
    assert run.budget.tokens == sum(turn.tokens_in + turn.tokens_out for turn in turns)
    walls = [turn.budget.wall_s for turn in turns if turn.budget is not None]
    assert walls == sorted(walls)
    asked = Counter(json.loads(line)["asked"] for line in directory.with_suffix(".requests").read_text().splitlines())
    assert set(asked) == set(range(TURNS))
    assert sum(asked.values()) - TURNS <= kills, f"no request is repeated beyond the one in flight: {asked}"
    store = ContentStore(directory)
    for turn in turns:
        if turn.candidate_digest is not None:
            assert store.candidate(turn.candidate_digest).digest == turn.candidate_digest
    assert RunManifest.read(directory).resumed


@pytest.mark.integration
def test_killed_three_times(tmp_path: Path) -> None:
    expected, span_s = undisturbed(tmp_path / "whole")
    # Half of the span: under load the undisturbed run may have been the slow one.
    assert killed(tmp_path / "killed", 3, span_s / 2, seed=5) == 3
    check(tmp_path / "killed", expected, 3)


@pytest.mark.integration
def test_killed_while_a_command_is_at_work_leaves_nothing_of_it(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    process = start(directory, "begin")
    notes = directory / "workspace" / "notes.txt"
    deadline = time.monotonic() + 120
    while not (notes.exists() and notes.read_text()) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert notes.read_text() == "a2\n", "killed between the two lines"
    assert len(read_transcript(directory)) == 2
    second = start(directory, "resume")
    while len(read_transcript(directory)) < 3 and second.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    # A third one, while the second is at work.
    third = start(directory, "resume")
    _, errors = third.communicate(timeout=60)
    assert third.returncode != 0 and f"in use by process {second.pid}" in errors.decode(), errors.decode()
    second.send_signal(signal.SIGKILL)
    second.communicate()
    texts = [result.text for result in read_transcript(directory)[2].results]
    assert texts == ["a2\nb2\n", "2\n"]


if __name__ == "__main__":
    import tempfile

    moments = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as folder:
        wanted, seconds = undisturbed(Path(folder) / "whole")
        times = killed(Path(folder) / "killed", moments, seconds, seed=int(time.time()))
        check(Path(folder) / "killed", wanted, moments)
        resumed = RunManifest.read(Path(folder) / "killed").resumed
        sys.stdout.write(f"killed {times} times, resumed after turns {[entry.turns for entry in resumed]}: equal\n")
