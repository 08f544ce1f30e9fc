"""Runs side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_records import failed, passed, written

import builders
from cuda_agent.bench.compare import compare
from cuda_agent.cli.main import run
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import Evaluation


def times(*values: float | None) -> dict[str, Evaluation | None]:
    """Tasks a, b, … with these latencies; None: it failed."""
    return {
        name: failed() if value is None else passed(value, eager=(1000 / value, 990 / value))
        for name, value in zip("abcdef", values, strict=False)
    }


def test_task_by_task(tmp_path: Path) -> None:
    first = written(tmp_path / "first", times(100, 100, 100, None, 100, None))
    second = written(tmp_path / "second", times(50, 101, 120, 100, None, None))
    comparison = compare([first, second])
    found = {row.task: row.cells[1] for row in comparison.rows}
    assert [cell.comparison for cell in found.values()] == ["faster", "same", "slower", "gained", "lost", "neither"]
    assert found["a"].faster == pytest.approx(2.0)
    (paired,) = comparison.paired
    assert (paired.tasks, paired.both_passed) == (6, 3)
    assert paired.ours.value == pytest.approx((2 * (100 / 101) * (100 / 120)) ** (1 / 3))
    # 20, 1000/101, 1000/120, 10, 1, 1 against 10, 10, 10, 1, 10, 1.
    assert paired.speedups["eager"].value == pytest.approx((2 * (100 / 101) * (100 / 120) * 10 / 10) ** (1 / 6))
    assert comparison.same_stack


def test_what_all_tasks_show_is_significant(tmp_path: Path) -> None:
    first = written(tmp_path / "first", times(*[100] * 6))
    second = written(tmp_path / "second", times(*[90, 91, 89, 90, 92, 90]))
    ours = compare([first, second]).paired[0].ours
    assert ours.low is not None and ours.low > 1.05


def test_other_stacks_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = written(tmp_path / "first", times(100), stack=builders.stack(torch="2.11.0"))
    second = written(tmp_path / "second", times(50), stack=builders.stack(torch="2.13.0"))
    assert not compare([first, second]).same_stack
    assert run(["compare", str(first), str(second)]) == 2
    assert "torch 2.13.0, was 2.11.0" in capsys.readouterr().err
    assert run(["compare", str(first), str(second), "--anyway"]) == 0
    out, err = capsys.readouterr()
    assert "2.00× faster" in out and "torch 2.13.0" in err


def test_nothing_to_compare(tmp_path: Path) -> None:
    first = written(tmp_path / "first", times(100))
    other = written(tmp_path / "other", {"z": failed()})
    with pytest.raises(UsageError, match="no task in common"):
        compare([first, other])
    with pytest.raises(UsageError, match="no benchmark run"):
        compare([first, tmp_path])
    with pytest.raises(UsageError, match="single"):
        compare([first])
