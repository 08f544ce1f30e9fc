"""Runs begun and gone on with, as far as nothing is played; what is asked for again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from bench_records import failed, passed, problem, result, written

from cuda_agent.bench.directory import RESULTS_FILE, BenchDirectory, read_results
from cuda_agent.bench.options import BenchOptions
from cuda_agent.bench.player import bound
from cuda_agent.bench.run import Players, begin, go_on, has_time, is_unfinished
from cuda_agent.bench.suite import SUITE_FILE
from cuda_agent.cli.main import run
from cuda_agent.core.bench import BenchResult
from cuda_agent.core.config import JudgeOptions, OptimizeOptions
from cuda_agent.core.enums import Device, Precision, Verdict
from cuda_agent.core.errors import PolicyError, StoreError, UsageError
from cuda_agent.core.inspection import LeastWork, Roofline


def options(**judge: float) -> BenchOptions:
    return BenchOptions(run=OptimizeOptions(judge=JudgeOptions(device=Device.CPU, **judge)), limit=2)


def test_begun_and_gone_on_with(tmp_path: Path) -> None:
    out, problems = tmp_path / "run", [problem(name, "1") for name in "abc"]
    bench = begin(["suite"], problems, options(), out)
    assert [entry.id for entry in bench.manifest.tasks] == ["level1-a", "level1-b"]
    with pytest.raises(UsageError, match="has a benchmark run"):
        begin(["suite"], problems, options(), out)
    again = go_on(out, suite=["suite"], options=options())
    assert again.problems == problems[:2] and again.options == options()
    with pytest.raises(UsageError, match=r"run\.judge\.timing_budget_s 2.0 instead of 10.0"):
        go_on(out, options=options(timing_budget_s=2.0))
    with pytest.raises(UsageError, match="has the suite suite"):
        go_on(out, suite=["other"])
    (out / SUITE_FILE).write_text(problems[2].task.model_dump_json() + "\n")
    with pytest.raises(StoreError, match="isn't the suite of the run"):
        go_on(out)


def test_files_of_a_run_that_somebody_edited(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", {"a": failed(), "b": None})
    lines = (folder / RESULTS_FILE).read_text()
    (folder / RESULTS_FILE).write_text('{"cut\n' + lines)
    with pytest.raises(StoreError, match=r"line 1: Invalid JSON.* remove that line"):
        read_results(folder)
    manifest = json.loads((folder / "bench.json").read_text())
    manifest["configuration"]["run"]["judge"]["device"] = "tpu"
    (folder / "bench.json").write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=r"run\.judge\.device"):
        go_on(folder)


def test_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(UsageError, match="isn't empty"):
        begin(["suite"], [problem("a")], options(), tmp_path)
    with pytest.raises(UsageError, match="no benchmark run"):
        go_on(tmp_path)


def test_a_half_written_result_is_dropped_and_the_last_one_counts(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", {"a": failed(), "b": None})
    directory = BenchDirectory(folder)
    with (folder / RESULTS_FILE).open("a") as stream:
        stream.write('{"half":')
    better = result(problem("a").entry, passed(eager=(2.0, 1.9)))
    directory.append(better)
    assert [one.task.id for one in read_results(folder)] == ["a", "b"]
    assert read_results(folder)[0] == better


def test_a_run_that_is_over_is_only_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "run", {"a": passed(eager=(2.0, 1.9)), "b": failed(), "c": None})
    assert go_on(folder).play().done == 3
    before = (folder / "bench.json").read_text()
    assert run(["bench", "--resume", "--out", str(folder), "--device", "cpu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in document["results"]] == ["passed", "failed", "not covered"]
    assert document["metrics"]["groups"][0]["passed"]["value"] == pytest.approx(1 / 3)
    assert (folder / "bench.json").read_text() == before, "nothing was gone on with"


def test_a_resumed_benchmark_goes_on_where_the_policy_failed() -> None:
    entry = problem("a").entry
    assert is_unfinished(result(entry, outcome="policy_error"))
    assert not is_unfinished(result(entry, failed(Verdict.OUT_OF_MEMORY))), "it had the device alone"
    assert not is_unfinished(result(entry, outcome="error", message="a is stochastic"))


def test_no_task_is_begun_in_vain() -> None:
    assert has_time([], None, 0.0) and has_time([100.0], None, 0.0)
    assert has_time([], 10.0, 9.0) and not has_time([], 10.0, 11.0)
    walls = [2.0, 90.0, 4.0, 3.0, 1.0]
    assert has_time(walls, 10.0, 5.0) and not has_time(walls, 10.0, 7.0), "as three of four"


class _Played:
    """A player whose task takes no time; as `Player`."""

    def __init__(self, name: str, outcome: str = "finished") -> None:
        self.name, self._outcome = name, outcome

    def stop(self) -> None: ...

    def play(self) -> BenchResult:
        return result(problem(self.name).entry, outcome=self._outcome, message="no key")


def players(*played: _Played, **options: Any) -> Players:
    return Players(cast("Any", played), 1, cast("Any", None), **options)


def test_tasks_without_time_for_all_are_interrupted() -> None:
    with pytest.raises(KeyboardInterrupt), players(_Played("one"), stop_after_s=-1.0) as at_work:
        list(at_work.results())


def test_results_come_as_they_are_known() -> None:
    with players(_Played("a"), _Played("b")) as at_work:
        assert [one.task.id for one in at_work.results()] == ["a", "b"]


def test_a_policy_that_fails_again_and_again_ends_the_benchmark() -> None:
    with (
        pytest.raises(PolicyError, match="3 tasks in a row: no key"),
        players(*(_Played(name, "policy_error") for name in "abcde")) as at_work,
    ):
        list(at_work.results())


def test_roofline_classes() -> None:
    limits = Roofline(bandwidth_gb_s=4000, fp32_tflops=50, tf32_tflops=400)
    moving = LeastWork(bytes=400_000_000, product_flops=0, other_flops=100_000_000)
    multiplying = LeastWork(bytes=4_000_000, product_flops=40_000_000_000, other_flops=0)
    assert bound(moving, limits, Precision.TF32) == "memory"
    assert bound(multiplying, limits, Precision.TF32) == "compute", "100 µs at the policy's peak, 1 µs of memory"
    assert bound(LeastWork(bytes=4_000, product_flops=0, other_flops=0), limits, Precision.TF32) == "latency"
    assert bound(moving, None, Precision.TF32) is None
