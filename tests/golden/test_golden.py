"""Golden runs, played again from their transcripts alone, leave the same files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cuda_agent.agent.storage.transcript import read_transcript
from golden.renew_golden import HERE, RUNS, comparable, play


@pytest.mark.parametrize("name", sorted(RUNS))
def test_a_recorded_run_leaves_the_same_files(name: str, tmp_path: Path) -> None:
    recorded = read_transcript(HERE / name)
    turns, candidate = play([turn.calls for turn in recorded], tmp_path / "run")
    assert candidate.files == json.loads((HERE / name / "files.json").read_text())
    assert [turn.candidate_digest for turn in turns] == [turn.candidate_digest for turn in recorded]
    for turn, wanted in zip(turns, recorded, strict=True):
        # Messages of tools may be worded better; whether a call was done may not change.
        assert [result.ok for result in turn.results] == [result.ok for result in wanted.results], turn.results
        assert comparable(turn).calls == wanted.calls
