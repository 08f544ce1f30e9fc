"""gate.yaml: its defaults, its paths, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.core.errors import UsageError
from cuda_agent.release.gate import GateOptions, SpeedGate, load_gate


def written(folder: Path, text: str) -> Path:
    path = folder / "gate.yaml"
    path.write_text(text)
    return path


def test_the_example_holds_the_defaults() -> None:
    example = Path(__file__).parents[3] / "examples" / "gate.yaml"
    gate = load_gate(example)
    defaults = GateOptions()
    assert gate.lock == example.parent / "../stack.lock"
    assert gate.model_copy(update={"lock": defaults.lock}) == defaults


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = "speed:\n  kernels: {mine: ../mine}\nwhole_model: {record: model}\n"
    gate = load_gate(written(tmp_path, text))
    assert gate.lock == tmp_path / "stack.lock"
    assert gate.speed.kernels == {"mine": tmp_path / "../mine"}
    assert gate.whole_model.record == tmp_path / "model"
    assert load_gate(written(tmp_path, "lock: null\n")).lock is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sped: {}\n", "Did you mean 'speed'"),
        ("speed: {margins: 2}\n", r"unknown setting 'speed\.margins'. Did you mean 'speed\.margin'"),
        ("speed: {processes: 1}\n", r"gate.yaml: speed\.processes: .*greater than or equal to 3"),
        ("speed: 3\n", "speed: it holds no settings"),
        ("speed:\n", "speed: it holds no settings"),
        ("verification: {shapes: all}\n", "shapes"),
        ("- 1\n", "holds no settings"),
        ("a: [\n", "not YAML"),
        ("speed: {baselines: [triton]}\n", "baselines"),
        ("speed: {kernels: {../up: x}}\n", "is not a valid name"),
    ],
)
def test_what_is_wrong_with_one(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_gate(written(tmp_path, text))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Can't read"):
        load_gate(tmp_path / "gate.yaml")
    assert load_gate(None).speed == SpeedGate()
