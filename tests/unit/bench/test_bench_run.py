"""Runs begun and gone on with, as far as nothing is played; what is asked for again; room for tasks."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from bench_records import failed, passed, problem, result, written

from cuda_agent.bench import crew as crews
from cuda_agent.bench import options as bench_options
from cuda_agent.bench.crew import Crew
from cuda_agent.bench.directory import RESULTS_FILE, BenchDirectory, read_results
from cuda_agent.bench.lane import Address
from cuda_agent.bench.options import BenchOptions, open_bytes, shared_room
from cuda_agent.bench.player import Job
from cuda_agent.bench.roofline import bound
from cuda_agent.bench.run import begin, go_on, is_doubtful
from cuda_agent.bench.scarcity import Memory
from cuda_agent.bench.suite import SUITE_FILE, Problem
from cuda_agent.cli.main import run
from cuda_agent.core.config import JudgeOptions, OptimizeOptions
from cuda_agent.core.enums import Device, Precision, Verdict
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.inspection import Roofline, Work
from cuda_agent.core.records import Violation


def options(**judge: float) -> BenchOptions:
    return BenchOptions(run=OptimizeOptions(judge=JudgeOptions(device=Device.CPU, **judge)), limit=2)


def test_begun_and_gone_on_with(tmp_path: Path) -> None:
    out, problems = tmp_path / "run", [problem(name, "1") for name in "abc"]
    bench = begin(["suite"], problems, options(), out)
    assert [entry.id for entry in bench.manifest.tasks] == ["level1-a", "level1-b"]
    with pytest.raises(UsageError, match="holds a benchmark run"):
        begin(["suite"], problems, options(), out)
    again = go_on(out, suite=["suite"], options=options())
    assert again.problems == problems[:2] and again.options == options()
    with pytest.raises(UsageError, match=r"run\.judge\.timing_budget_s 2.0 instead of 10.0"):
        go_on(out, options=options(timing_budget_s=2.0))
    with pytest.raises(UsageError, match="begun with the suite suite"):
        go_on(out, suite=["other"])
    (out / SUITE_FILE).write_text(problems[2].task.model_dump_json() + "\n")
    with pytest.raises(StoreError, match="isn't what the run was begun with"):
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


def test_what_neighbours_may_have_spoilt() -> None:
    entry = problem("a").entry
    assert is_doubtful(result(entry, failed(Verdict.OUT_OF_MEMORY)))
    assert is_doubtful(result(entry, failed(Verdict.TIMING_VOID)))
    assert is_doubtful(result(entry, outcome="error", message="No memory for reference-inputs-1: 3 GiB"))
    assert is_doubtful(result(entry, outcome="policy_error"))
    assert not is_doubtful(result(entry, failed(Verdict.OUT_OF_MEMORY), alone=True))
    good = passed(eager=(2.0, 1.9))
    assert good.profile is not None and not is_doubtful(result(entry, good))
    for reason, doubtful in (("OutOfMemoryError: CUDA out of memory", True), ("InductorError: no backend", False)):
        profile = good.profile.model_copy(update={"failed_baselines": {"compile": reason}})
        assert is_doubtful(result(entry, good.model_copy(update={"profile": profile}))) is doubtful
    assert not is_doubtful(result(entry, failed()))
    assert not is_doubtful(result(entry, outcome="error", message="a is stochastic"))


def test_a_clock_that_was_disturbed_is_asked_again() -> None:
    entry = problem("a").entry
    good = passed(eager=(2.0, 1.9)).model_copy(update={"device": Device.CUDA})
    assert good.profile is not None
    for beyond, device, doubtful in ((1.05, Device.CUDA, False), (1.5, Device.CUDA, True), (1.5, Device.CPU, False)):
        time = good.profile.candidate
        paid = time.model_copy(update={"latency_us": beyond * time.event_us, "high_us": 2 * time.high_us})
        profile = good.profile.model_copy(update={"candidate": paid})
        slow = good.model_copy(update={"profile": profile, "device": device})
        assert is_doubtful(result(entry, slow)) is doubtful
        wrong = slow.model_copy(update={"verdict": Verdict.INCORRECT})
        assert not is_doubtful(result(entry, wrong)), "a clock says nothing of answers"
    for rules, doubtful in (
        ([("timing", "clock")], True),
        ([("timing", "clock"), ("timing", "timed_output")], False),
        ([("source", "clock")], False),
    ):
        violations = tuple(Violation(rule=rule, layer=layer, detail="") for layer, rule in rules)
        convicted = failed(Verdict.VIOLATION).model_copy(update={"violations": violations, "device": Device.CUDA})
        assert is_doubtful(result(entry, convicted)) is doubtful


def test_room_for_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = problem("small"), Problem(problem("large").entry, problem("large").task, peak_bytes=1 << 40)
    room = open_bytes(small, Device.CPU) * 2
    monkeypatch.setattr(crews, "open_capacity", lambda device: room)

    def job(problem: Problem, alone: bool) -> Job:
        raise AssertionError

    told: list[int | None] = []
    crew = Crew(Device.CPU, 1, Address(Path("lane"), b""), job, set_room=told.append)
    crew._waiting.extend([small, large])
    assert crew._take() == small
    crew._give_back(small)
    assert crew._take() == large, "alone, however large"
    assert crew._take() is None
    crew.close()
    assert told == [None] * 3, "nobody waits for memory on a CPU"


def test_no_task_is_begun_in_vain() -> None:
    assert crews.has_time([], None, 0.0) and crews.has_time([100.0], None, 0.0)
    assert crews.has_time([], 10.0, 9.0) and not crews.has_time([], 10.0, 11.0)
    walls = [2.0, 90.0, 4.0, 3.0, 1.0]
    assert crews.has_time(walls, 10.0, 5.0) and not crews.has_time(walls, 10.0, 7.0), "as three of four"


def test_who_has_no_time_for_all_is_interrupted() -> None:
    def job(problem: Problem, alone: bool) -> Job:
        raise AssertionError

    crew = Crew(Device.CPU, 1, Address(Path("lane"), b""), job, end=time.monotonic() - 1.0)
    with pytest.raises(KeyboardInterrupt):
        list(crew.play([problem("one")], alone=False))
    crew.close()


def test_a_task_that_keeps_less_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    first, second = (replace(problem(name), peak_bytes=20 * gib) for name in ("first", "second"))
    monkeypatch.setattr(crews, "open_capacity", lambda device: open_bytes(first, Device.CUDA) + 6 * gib)
    monkeypatch.setattr(bench_options, "_device_bytes", lambda: 100 * gib)
    told: list[int | None] = []

    def job(problem: Problem, alone: bool) -> Job:
        raise AssertionError

    crew = Crew(Device.CUDA, 1, Address(Path("lane"), b""), job, set_room=told.append)
    crew._waiting.extend([first, second])
    assert crew._take() == first
    taken: list[Problem | None] = []
    thread = threading.Thread(target=lambda: taken.append(crew._take()))
    thread.start()
    crew._hears(first, Memory(100 * gib))
    crew._hears(second, Memory(0))
    crew._hears(first, Memory(2 * gib, is_short=True))
    assert not taken, "no room where it keeps more, nor by a task that isn't open, nor while one waits for memory"
    crew._hears(first, Memory(2 * gib))
    thread.join(10)
    assert taken == [second]
    crew._give_back(first)
    crew._give_back(second)
    crew._hears(first, Memory(0, is_short=True))
    crew._waiting.append(first)
    assert crew._take() == first, "that one isn't open any more"
    crew._give_back(first)
    crew.close()
    rooms = [room // gib for room in told if room is not None]
    assert rooms == [99, 61, 110, 110, 95, 99, 114, 99, 114], (
        "of 115 GiB: less contexts, and half of what is kept besides"
    )


def test_room_for_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_options, "_device_bytes", lambda: 1000)
    monkeypatch.setattr(bench_options, "_CONTEXTS", 10)
    rooms = [shared_room(in_use, Device.CUDA) for in_use in ([], [10], [110, 60], [700, 700])]
    assert rooms == [1150, 1140, 1055, 440], "of what is kept besides contexts, half"
    assert shared_room([2800], Device.CUDA) == 250
    assert shared_room([10], Device.CPU) is None


def test_roofline_classes() -> None:
    limits = Roofline(bandwidth_gb_s=4000, fp32_tflops=50, tf32_tflops=400)
    moving = Work(bytes=400_000_000, product_flops=0, other_flops=100_000_000)
    multiplying = Work(bytes=4_000_000, product_flops=40_000_000_000, other_flops=0)
    assert bound(moving, limits, Precision.TF32) == "memory"
    assert bound(multiplying, limits, Precision.TF32) == "compute", "100 µs at the policy's peak, 1 µs of memory"
    assert bound(Work(bytes=4_000, product_flops=0, other_flops=0), limits, Precision.TF32) == "latency"
    assert bound(moving, None, Precision.TF32) is None
