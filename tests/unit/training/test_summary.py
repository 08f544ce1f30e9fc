"""Three recorded trainings, seeds and one ablation, as a summary."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

import builders
import pocket_domain as domain
from cuda_agent.cli.main import run
from cuda_agent.core.enums import Milestone, Verdict
from cuda_agent.core.errors import UsageError
from cuda_agent.core.lines import append
from cuda_agent.core.records import Candidate
from cuda_agent.tasks.records import DatasetTask
from cuda_agent.training.config import TrainingOptions
from cuda_agent.training.environment.opening import EnvironmentOptions, Opening
from cuda_agent.training.episodes import Episode
from cuda_agent.training.evaluate import SCORES, SEED_STEP, score_of
from cuda_agent.training.metrics import MetricsLog
from cuda_agent.training.stages.records import Halt, StageEnd, TrainingManifest
from cuda_agent.training.summary import Summary, recipe_name, summarize

ROOT = Path(__file__).resolve().parents[3]
PPO: dict[str, Any] = {"steps": 2, "batch": 2, "actor_lr": 1e-3, "critic_lr": 1e-3}
JUDGE = {"precision": "fp32", "timing_budget_s": 0.3, "trials": 1}


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """One to train on, one held out, whose choices are all known."""
    domain.judges(tmp_path / "memo").close()
    held = domain.TASK.model_copy(update={"split": "held_out"})
    train = domain.TASK.model_copy(update={"name": "other", "source": domain.SOURCE + "# other\n"})
    (tmp_path / "memo/graphs" / f"{train.key}.json").write_text(domain.graph().to_json())
    lines = [DatasetTask(task=one, ops=("scale",), composer="test", number=n) for n, one in enumerate((train, held))]
    append(tmp_path / "tasks.jsonl", lines)
    return tmp_path


def training(root: Path, name: str, seed: int, rewards: dict[str, list[float]], **changes: Any) -> Path:
    """A folder as `cuda-agent train` leaves it: two episodes of each seed's evaluation after each stage."""
    folder = root / name
    places = {"tasks": str(root / "tasks.jsonl"), "memo": str(root / "memo"), "judge": JUDGE, "stack": stack(root)}
    # A value of the recorded runs, which today's environments refuse.
    places["unknown"] = "leave_out"
    options = TrainingOptions.parse({
        "name": "small", "device": "cpu", "seed": seed, "warmup": PPO, "ppo": PPO, "environment": places, **changes,
    })  # fmt: skip
    ends = []
    for stage, values in rewards.items():
        times = [60.0 if value > 2 else 130.0 for value in values]
        episodes = [
            Episode(
                task_key=domain.TASK.key, task_name="scale", prompt_ids=(1,), response_ids=(2,), mask=(1,),
                log_probabilities=(-1.0,), reward=value, milestone=list(Milestone)[int(max(value, 0))], turns=1,
                truncated=False, ratio=120.0 / us, best_us=us, judged=((us, 120.0 / us),), seed=number * SEED_STEP,
            )
            for number, (value, us) in enumerate(zip(values, times, strict=True))
        ]  # fmt: skip
        held = folder / "held-out" / stage
        append(held / f"{stage}.jsonl", episodes)
        score = score_of(stage, episodes, [domain.TASK], seeds=(0, 1), episodes=1, best={domain.TASK.key: 60.0})
        append(held / SCORES, [score])
        ends.append(StageEnd(stage=stage, ended="now", wall_s=1.0))
    TrainingManifest(
        command=("train",), configuration=options.model_dump(mode="json"), version="0", commit=None,
        stack=builders.stack(), started="now", stages=tuple(ends),
    ).write(folder)  # fmt: skip
    with MetricsLog(folder, "ppo", from_step=1) as metrics:
        metrics.add(1, {"reward": 1.5, "entropy": 0.2, "explained_variance": 0.5, "wall_s": 9.0})
    return folder


def stack(root: Path) -> str:
    line: str = (root / "memo/evaluations.jsonl").read_text().splitlines()[0]
    return line.split('"stack":"')[1].split('"')[0]


@pytest.fixture
def runs(tasks: Path) -> list[Path]:
    base = [1.0, 1.0]
    first = training(tasks, "run-0", 0, {"base": base, "ppo": [3.0, 3.0]})
    second = training(tasks, "run-1", 1, {"base": base, "ppo": [3.0, 1.0]})
    without = training(
        tasks, "no-rft-0", 0, {"base": base, "ppo": [1.0, 1.0]}, rft=None, reward="milestone", agent_loop=False
    )
    cut = training(tasks, "speedup-0", 0, {"base": base}, reward="speedup")
    Halt(reason="entropy exploded", step=7, policy=None).write(cut / "ppo")
    return [first, second, without, cut]


def test_seeds_and_ablations_side_by_side(runs: list[Path]) -> None:
    found = summarize(runs, budget=4)
    full, without, cut = found.recipes
    assert [one.name for one in found.recipes] == ["full", "no agent loop", "raw speed-up"]
    assert full.seeds == (0, 1) and not full.unfinished
    ppo = full.stages[-1]
    assert (ppo.stage, ppo.by_seed["reward"]) == ("ppo", (3.0, 2.0))
    # A task's mean over the two policies is 2.5; each has one task, so the interval is a point.
    assert (ppo.score.reward.value, ppo.over_base[0].value) == (2.5, 1.5)
    # Seed 0 against seed 0 alone.
    assert (without.over_full[0].metric, without.over_full[0].value) == ("reward", -2.0)
    assert cut.halted == {"speedup-0": "ppo step 7: entropy exploded"} and cut.unfinished == {"speedup-0": "base"}
    assert cut.over_full == ()
    assert found.curves["run-0"] == (
        {"stage": "ppo", "step": 1, "reward": 1.5, "entropy": 0.2, "explained_variance": 0.5},
    )


def test_evaluations_to_the_best_over_all_seeds(runs: list[Path]) -> None:
    found = summarize(runs, budget=4)
    searches = {one.name: one for one in found.searches.searches}
    assert set(searches) == {"full", "base", "no agent loop", "random", "playbook"}
    # Three of four policies and seeds got there at once, one never did: it counts as five.
    assert searches["full"].to_near.value == 2.0 and searches["full"].reached[1] == 0.75
    assert searches["base"].to_near.value == 5.0
    # 60 µs is the best; 130 of the one that never got there is 0.46 of its speed.
    assert searches["full"].speed[1].value == pytest.approx((3 + 60 / 130) / 4)
    gaps = {gap.metric: gap.value for gap in found.gaps["full"]}
    assert gaps["speed by 1 - base"] == pytest.approx(0.75 * (1 - 60 / 130))
    gaps = {metric: value for metric, value in gaps.items() if metric.startswith("to_near")}
    assert gaps["to_near - base"] == -3.0 and set(gaps) == {
        f"to_near - {name}" for name in ("base", "random", "playbook")
    }


def test_the_command(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pocket", "summary", *map(str, runs), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "speedup-0 was halted at ppo step 7: entropy exploded" in said and "over the full recipe" in said
    assert Summary.read(tmp_path).recipes[0].runs == ("run-0", "run-1")
    assert run(["pocket", "summary", str(tmp_path / "nothing")]) == 2


def test_the_recorded_runs_can_be_read(tmp_path: Path) -> None:
    """Their configuration has a setting of playing that this version doesn't know, and their scores lack metrics."""
    results = ROOT / "benchmarks" / "results" / "2026-11-25-h200-pocket"
    for archive, wanted in ((results / "runs.txz", "pocket-0/"), (ROOT / "data/measured/pocket.tgz", "pocket/")):
        with tarfile.open(archive) as packed:
            members = [one for one in packed.getmembers() if one.name.removeprefix("./").startswith(wanted)]
            packed.extractall(tmp_path, members, filter="data")
    (recipe,) = summarize([tmp_path / "pocket-0"], budget=16, memo=tmp_path / "pocket" / "memo").recipes
    last = recipe.stages[-1]
    # As in the table of its page.
    assert last.stage == "ppo" and round(last.score.reward.value, 2) == 2.53 and last.score.pass_at_k is None


def test_a_training_without_plans_has_scores_and_no_searches(runs: list[Path]) -> None:
    for stage in ("base", "ppo"):
        path = runs[0] / "held-out" / stage / SCORES
        path.write_text(path.read_text().replace('"to_near":[1,1]', '"to_near":[]').replace("[null,null]", "[]"))
    found = summarize(runs[:1], budget=4)
    assert found.recipes[0].stages[-1].over_base[0].value == 2.0
    assert found.searches.choices == {} and found.gaps == {}
    assert run(["pocket", "summary", str(runs[0])]) == 0


def test_recipes_are_named_by_what_differs() -> None:
    full = {"seed": 0, "rft": {"lr": 1}, "ppo": {"steps": 2, "mismatch": None}, "protect": {"ratio": 1}}
    assert recipe_name(full, {**full, "seed": 1, "protect": {"ratio": 2}}) == "full"
    assert recipe_name(full, {**full, "rft": None}) == "no RFT"
    assert recipe_name(full, {**full, "ppo": {"steps": 2, "mismatch": {"below": 0.01}}}) == "mismatch"
    assert recipe_name(full, {**full, "ppo": {"steps": 3, "mismatch": None}}) == "ppo.steps=3"


def test_a_training_that_was_never_evaluated(tasks: Path) -> None:
    with pytest.raises(UsageError, match="never evaluated"):
        summarize([training(tasks, "run-0", 0, {})], budget=4)


def test_what_is_not_known_can_count_as_a_failure(tasks: Path) -> None:
    options = EnvironmentOptions(
        tasks=str(tasks / "tasks.jsonl"), memo=str(tasks / "memo"), judge=JUDGE, unknown="fail"
    )
    candidate = Candidate(files={"model_new.py": "x", "kernels/a.cpp": "y"})
    with Opening(options, "cpu", tasks).judges() as (judges, _, held):
        session, before = judges.session(held[0]), len(judges.memo)
        assert not session.build(candidate).succeeded
        for found in (session.evaluate(candidate, stop="decided"), session.verify(candidate)):
            assert found.verdict is Verdict.BUILD_FAILED and "measured" in found.reason
        assert (session.evaluations, session.memoised, len(judges.memo)) == (2, 0, before), "others may have it judged"
