"""Runs g++'s preprocessor on a candidate's files, without headers of others."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate, Violation
from cuda_agent.judge.guard.preprocessed import Preprocessed, own_lines
from cuda_agent.judge.guard.source import check_preprocessed


def preprocess(files: dict[str, str], source: str, folder: Path) -> Preprocessed:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    command = ["g++", "-std=c++20", "-x", "c++", "-E", source]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return own_lines(done.stdout, [Path("/usr")])


def found(files: dict[str, str], source: str, folder: Path, device: Device = Device.CUDA) -> list[Violation]:
    seen = preprocess(files, source, folder)
    return check_preprocessed([seen, seen], Candidate(files=files), source, device)
