"""Metrics against numbers worked out by hand; and of runs with all failures, one task, none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from bench_records import failed, passed, problem, result

from cuda_agent.bench.metrics import THRESHOLDS, interval, metrics_of, top_tenth_share
from cuda_agent.core.bench import Against, BenchResult, MetricsGroup
from cuda_agent.core.enums import Signal, Verdict
from cuda_agent.core.records import Evaluation


def run() -> list[BenchResult]:
    """Against eager 4.00, 1.02, 0.50 and a failure; against compile 2.00, none (it failed to compile), 0.80."""
    one, two, three, four = (problem(name, level).entry for name, level in zip("abcd", "1122", strict=True))
    return [
        result(one, passed(eager=(4.0, 3.9), compile=(2.0, 1.9))),
        result(two, passed(eager=(1.02, 0.99))),
        result(three, passed(eager=(0.5, 0.49), compile=(0.8, 0.7))),
        result(four, failed()),
    ]


def against(group: MetricsGroup, baseline: str) -> Against:
    return next(a for a in group.against if a.baseline == baseline)


def test_by_hand() -> None:
    metrics = metrics_of(run())
    whole = metrics.groups[0]
    assert (metrics.tasks, metrics.done, whole.by, whole.tasks) == (4, 4, "all", 4)
    assert whole.passed.value == 0.75
    assert whole.verdicts == {"incorrect": 1, "passed": 3}
    assert whole.rewards == {"-1": 1, "1": 2, "3": 1}
    eager = against(whole, "eager")
    assert eager.faster.value == 0.5
    assert eager.significantly_faster.value == eager.faster_by_5_percent.value == 0.25
    assert eager.geomean_correct.value == pytest.approx(2.04 ** (1 / 3))
    assert eager.geomean_all.value == pytest.approx(4.08 ** (1 / 4)), "the original of the third is kept"
    assert eager.median_correct.value == pytest.approx(1.02)
    assert eager.median_all.value == pytest.approx(math.sqrt(1.02)), "between a failure, which counts 1, and 1.02"
    assert eager.top_tenth_share == pytest.approx(math.log(4) / math.log(4.08))
    fast = dict(zip(eager.thresholds, eager.fast_p, strict=True))
    assert (fast[0.5], fast[1.0], fast[1.05], fast[3.0], fast[5.0]) == (0.5, 0.5, 0.25, 0.25, 0.0)
    compiled = against(whole, "compile")
    assert compiled.faster.value == 0.25, "what has no time of compile isn't faster than it"
    assert compiled.geomean_correct.value == pytest.approx(math.sqrt(1.6))
    assert compiled.geomean_all.value == pytest.approx(2.0 ** (1 / 4)) and whole.kept == 1
    assert against(whole, "matched") == compiled.model_copy(update={"baseline": "matched"})


def test_in_a_full_queue_by_hand() -> None:
    def queued(ours: float | None, **theirs: float | None) -> Evaluation:
        evaluation = passed(**dict.fromkeys(theirs, (2.0, 1.9)))
        assert evaluation.profile is not None
        profile = evaluation.profile
        mine = profile.candidate.model_copy(update={"queued_us": ours})
        others = {n: t.model_copy(update={"queued_us": theirs.get(n)}) for n, t in profile.baselines.items()}
        profile = profile.model_copy(update={"candidate": mine, "baselines": others})
        return evaluation.model_copy(update={"profile": profile})

    evaluations = [queued(10.0, eager=40.0), queued(10.0, eager=9.0), queued(10.0, eager=None), queued(None, eager=9.0)]
    results = [result(problem(name).entry, e) for name, e in zip("abcd", evaluations, strict=True)]
    results.append(result(problem("e").entry, failed()))
    whole = metrics_of(results).groups[0]
    assert against(whole, "eager").geomean_queued.value == pytest.approx(math.sqrt(4.0 * 0.9))
    assert against(whole, "compile").geomean_queued.value is None


def test_groups() -> None:
    levels = {group.name: group for group in metrics_of(run()).groups if group.by == "level"}
    assert {name: group.passed.value for name, group in levels.items()} == {"1": 1.0, "2": 0.5}
    assert against(levels["1"], "eager").geomean_all.value == pytest.approx(math.sqrt(4.08))
    assert not [group for group in metrics_of(run()).groups if group.by in ("origin", "roofline")]


def test_roofline_classes_hold_every_task() -> None:
    results = run()
    entry = results[0].task.model_copy(update={"roofline": "memory"})
    results[0] = results[0].model_copy(update={"task": entry})
    groups = [group for group in metrics_of(results).groups if group.by == "roofline"]
    assert {group.name: group.tasks for group in groups} == {"memory": 1, "unknown": 3}


def test_tasks_whose_answer_is_a_constant_have_a_row_of_their_own() -> None:
    results = run()
    assert not [group for group in metrics_of(results).groups if group.by == "signal"]
    constant = passed(eager=(2.0, 1.9)).model_copy(update={"signal": Signal.NONE})
    results.append(result(problem("constant").entry, constant))
    groups = [group for group in metrics_of(results).groups if group.by == "signal"]
    assert {group.name: group.tasks for group in groups} == {"none": 1, "own": len(results) - 1}


def test_intervals_hold_the_value_and_repeat() -> None:
    eager = against(metrics_of(run()).groups[0], "eager")
    for estimate in (eager.geomean_all, eager.geomean_correct, eager.median_all, eager.faster):
        assert estimate.low is not None and estimate.high is not None and estimate.value is not None
        assert estimate.low <= estimate.value <= estimate.high
    assert metrics_of(run()) == metrics_of(run())


def test_the_bootstrap_agrees_with_theory() -> None:
    values = np.random.default_rng(1).normal(size=400)
    low, high = interval(values, lambda rows: rows.mean(axis=1))
    error = values.std() / 20
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)


def test_all_failed() -> None:
    entries = [problem(name).entry for name in "abc"]
    results = [
        result(entries[0], failed(Verdict.BUILD_FAILED)),
        result(entries[1], None, outcome="not_covered"),
        result(entries[2], None, outcome="error"),
    ]
    (group,) = metrics_of(results, tasks=5).groups
    assert group.verdicts == {"build_failed": 1, "error": 1, "not_covered": 1}
    eager = against(group, "eager")
    assert group.passed.value == eager.faster.value == 0.0
    assert eager.geomean_all.value == eager.median_all.value == 1.0
    assert eager.geomean_correct.value is eager.median_correct.value is eager.top_tenth_share is None
    assert eager.fast_p == (0.0,) * len(THRESHOLDS)


def test_one_task_has_no_interval() -> None:
    eager = against(metrics_of([result(problem("a").entry, passed(eager=(2.0, 1.9)))]).groups[0], "eager")
    assert (eager.geomean_all.value, eager.geomean_all.low, eager.geomean_all.high) == (pytest.approx(2.0), None, None)


def test_one_correct_task_of_several_has_no_interval() -> None:
    one, other = (problem(name).entry for name in "ab")
    (group,) = metrics_of([result(one, passed(eager=(2.0, 1.9))), result(other, failed())]).groups
    eager = against(group, "eager")
    assert eager.geomean_correct.value == pytest.approx(2.0)
    assert eager.geomean_correct.low is eager.median_correct.low is None
    assert eager.geomean_all.low == pytest.approx(1.0)


def test_nothing_is_done() -> None:
    assert metrics_of([], tasks=3).groups == ()


def test_the_top_tenth() -> None:
    assert top_tenth_share(np.log([2.0] * 20)) == pytest.approx(0.1)
    assert top_tenth_share(np.log([16.0, *[2.0] * 9, 0.1])) == pytest.approx(4 / 13)
    assert top_tenth_share(np.log([0.5])) is None
