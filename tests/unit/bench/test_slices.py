"""What `benchmarks/suite.py` says of a run's turns on the device."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest


def test_how_long_turns_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[3] / "benchmarks" / "suite.py"
    spec = importlib.util.spec_from_file_location("benchmark_in_slices", path)
    assert spec is not None and spec.loader is not None
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)
    log = tmp_path / "turns.jsonl"
    suite._say_turns(log)
    clock = {"task": "a", "step": "timing", "kind": "clock", "asked_s": 1.0, "begun_s": 4.0, "left_s": 5.0}
    clock |= {"resting_bytes": 0, "step_bytes": 0, "promised_bytes": 2 << 30}
    device = clock | {"kind": "device", "step": "verification", "promised_bytes": 3 << 30}
    turns = (clock, clock | {"left_s": 6.0}, device, clock | {"begun_s": None})
    log.write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    suite._say_turns(log)
    assert capsys.readouterr().out.splitlines() == [
        "clock timing: 2 turns of 1.5 s, waited for 3.0 s",
        "device verification: 1 turns of 1.0 s, waited for 3.0 s",
        "at most 3.0 GiB were promised",
    ]
