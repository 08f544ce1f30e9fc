from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

import pocket_domain as domain
from cuda_agent.core.enums import Milestone
from cuda_agent.core.records import Task
from cuda_agent.training.episodes import Episode, Generate
from cuda_agent.training.evaluate import (
    SEED_STEP,
    StageScore,
    compare,
    differences,
    evaluate_stage,
    evaluations_to,
    interval,
    pass_at,
    score_of,
)
from cuda_agent.training.pocket.table import best_us, playbook_order, spread, table


def episode(reward: float | None, ratio: float | None, times: tuple[float | None, ...] = (), seed: int = 0) -> Episode:
    return Episode(
        task_key=domain.TASK.key, task_name="scale", prompt_ids=(1,), response_ids=(2,), mask=(1,),
        log_probabilities=(-1.0,), reward=reward, milestone=None if reward is None else Milestone.CORRECT,
        truncated=False, turns=1, ratio=ratio, judged=tuple((us, None) for us in times), seed=seed,
        evaluations=len(times), memoised=len(times),
    )  # fmt: skip


def test_evaluations_to_95_percent() -> None:
    assert evaluations_to([None, 200.0, 105.2, 100.0], 100.0) == 3
    assert evaluations_to([105.4], 100.0) is None
    assert evaluations_to([], 100.0) is None


def test_a_score_counts_failures_and_leaves_out_what_the_judge_lost() -> None:
    played = [episode(3.0, 2.0, (100.0,)), episode(-1.0, None, (None,)), episode(None, None)]
    played += [episode(1.0, 1.04, (300.0, 102.0), seed=SEED_STEP)]
    score = score_of("ppo", played, [domain.TASK], seeds=(0, 1), episodes=2, best={domain.TASK.key: 100.0})
    (one,) = score.tasks
    assert (one.episodes, one.reward) == (3, 1.0)
    assert one.pass_rate == pytest.approx(2 / 3) and one.faster_rate == pytest.approx(1 / 3)
    assert one.geomean == pytest.approx((2.0 * 1.0 * 1.04) ** (1 / 3))
    assert one.to_near == (1, 2)
    assert score.hit_rate == 1.0
    gap = {d.metric: d.value for d in differences(score, score)}
    assert set(gap.values()) == {0} and {"reward", "pass_at_k", "log geomean", "log geomean_passing"} <= set(gap)


def test_what_passes_among_k_and_what_is_faster_than_which() -> None:
    """Two of four episodes pass, so two drawn ones both fail in one of six cases."""
    assert [pass_at(k, 4, 2) for k in (1, 2, 3, 8)] == [0.5, pytest.approx(5 / 6), 1.0, 1.0]
    assert pass_at(8, 8, 0) == 0.0 and pass_at(1, 24, 6) == 0.25
    milestones = (Milestone.FAILED, Milestone.CORRECT, Milestone.FASTER_THAN_EAGER, Milestone.FASTER_THAN_BOTH)
    ratios = (None, 0.5, 1.0, 2.0)
    played = [
        episode(1.0, ratio).model_copy(update={"milestone": milestone})
        for milestone, ratio in zip(milestones, ratios, strict=True)
    ]
    score = score_of("rft", played, [domain.TASK], seeds=(0,), episodes=4, k=2, best={})
    (one,) = score.tasks
    assert (one.pass_rate, one.pass_at_k, one.over_eager_rate, one.over_both_rate) == (0.75, 1.0, 0.5, 0.25)
    assert one.geomean == pytest.approx(1.0) and one.geomean_passing == pytest.approx(1.0)
    assert score.k == 2 and score.over_both_rate is not None and score.over_both_rate.value == 0.25
    failed = score_of("base", played[:1], [domain.TASK], seeds=(0,), episodes=1, best={})
    assert failed.geomean_passing is None and failed.geomean.value == 1.0
    gaps = {gap.metric: gap.value for gap in differences(score, failed)}
    assert gaps["pass_rate"] == 0.75 and "log geomean_passing" not in gaps


def test_a_score_of_an_older_version_is_compared_by_what_it_has() -> None:
    score = score_of("ppo", [episode(3.0, 2.0)], [domain.TASK], seeds=(0,), episodes=1, best={})
    new = ("pass_at_k", "over_eager_rate", "over_both_rate", "geomean_passing")
    lines = score.model_dump(exclude={"k", *new})
    lines["tasks"] = [{name: value for name, value in task.items() if name not in new} for task in lines["tasks"]]
    old = StageScore.model_validate(lines)
    assert {gap.metric for gap in differences(score, old)} == {"reward", "pass_rate", "faster_rate", "log geomean"}


def test_intervals_are_over_tasks_and_repeatable() -> None:
    one = interval([1.0, 2.0, 3.0, 4.0])
    assert one.value == 2.5 and 1.0 < one.low < 2.5 < one.high < 4.0
    assert interval([1.0, 2.0, 3.0, 4.0]) == one
    # Normal theory for the mean of many: 1.96 times the deviation over the root of the count.
    many = interval([float(n % 2) for n in range(400)])
    assert many.high - many.low == pytest.approx(2 * 1.96 * 0.5 / math.sqrt(400), rel=0.1)


def test_searches_at_an_equal_number_of_evaluations(tmp_path: Path) -> None:
    choices = table(domain.judges(tmp_path / "memo"), domain.TASK)
    assert best_us(choices) == 60.0 and spread(choices) == pytest.approx(400 / 60)
    assert [one.us for one in playbook_order(choices)] == [100.0, 60.0, 130.0, 400.0]
    players = {"trained": {domain.TASK.key: [[60.0], [None, 61.0], [400.0, 100.0, 60.0]]}}
    found = {one.name: one for one in compare({domain.TASK.key: choices}, players, budget=2).searches}
    # The third seed would need three, and may make two: it counts as three.
    assert found["trained"].to_near.value == 2.0 and found["trained"].reached == {1: 1 / 3, 2: 2 / 3}
    assert found["playbook"].to_near.value == found["playbook"].to_near_once.value == 2.0
    # Four choices, one of them good: 1/4 at once, 1/4 at the second, else counted as three.
    assert found["random"].to_near.value == pytest.approx(0.25 + 0.5 + 1.5, abs=0.25)
    repeating = {"trained": {domain.TASK.key: [[400.0, 400.0, 60.0], [None, None, 60.0]]}}
    (trained, *_) = compare({domain.TASK.key: choices}, repeating, budget=3).searches
    assert trained.to_near.value == 3.0 and trained.to_near_once.value == 2.5, "a known verdict costs nothing"


class Plays:
    """An environment of one answer."""

    def __init__(self) -> None:
        self.count = 0

    def play(self, tasks: Sequence[Task], generate: Generate, *, seed: int, policy_version: int = 0) -> list[Episode]:
        self.count += len(tasks)
        return [episode(1.0, 1.0, (100.0,), seed=seed) for _ in tasks]


def test_a_seed_that_a_kill_cut_short_is_played_anew(tmp_path: Path) -> None:
    environment = Plays()

    def score() -> StageScore:
        return evaluate_stage(
            environment,
            [domain.TASK],
            lambda seed: lambda contexts: [],
            stage="ppo",
            folder=tmp_path,
            seeds=(0, 1),
            episodes=3,
        )

    whole = score()
    lines = (tmp_path / "ppo.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "ppo.jsonl").write_text("".join(lines[:4]) + lines[4][:20])
    assert score() == whole and whole.tasks[0].episodes == 6
    assert environment.count == 9, "only the second seed is played again"
