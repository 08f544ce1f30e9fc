"""What `pocket` says when it can't begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tasks", "EMPTY"], "has no candidates"),
        (["fill", "--config", "nowhere.yaml", "--out", "EMPTY"], "nowhere.yaml"),
        (["fill", "--config", "CONFIG", "--out", "EMPTY"], "No tasks: missing.jsonl"),
        (["compare", "--config", "CONFIG", "--out", "EMPTY"], "holds no episodes"),
        (["compare", "--config", "CONFIG", "--out", "EMPTY", "--set", "environment.turns=3"], "turns"),
    ],
)
def test_it_names_what_is_missing(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    config = tmp_path / "config.yaml"
    config.write_text("name: small\ndevice: cpu\nenvironment: {tasks: missing.jsonl}\n")
    places = {"EMPTY": str(tmp_path / "empty"), "CONFIG": str(config)}
    assert run(["pocket", *(places.get(one, one) for one in arguments)]) == 2
    assert said in capsys.readouterr().err
