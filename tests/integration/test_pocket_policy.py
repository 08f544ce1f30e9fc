"""The pocket base model from real builds and verdicts on a tiny CPU task, and its checkpoint as a policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pocket_domain as domain
from cuda_agent.agent.optimize import optimize, resume
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.agent.storage.transcript import read_transcript
from cuda_agent.agent.trained.checkpoint import load_dialogue, load_settings
from cuda_agent.core.errors import UsageError
from cuda_agent.core.lines import append, read_lines
from cuda_agent.tasks.records import DatasetTask
from cuda_agent.training.environment.judges import Judges
from cuda_agent.training.environment.opening import EnvironmentOptions, Opening
from cuda_agent.training.episodes import read_episodes
from cuda_agent.training.evaluate import SCORES, StageScore
from cuda_agent.training.held_out import HeldOutOptions, compare_training, evaluate_checkpoint
from cuda_agent.training.pocket.author import Shares
from cuda_agent.training.pocket.base import TRANSCRIPTS, BaseOptions, make_base
from cuda_agent.training.pocket.table import fill, table

pytestmark = pytest.mark.integration

# One task on both sides, so that its few choices are judged once: what is learned is not the question here.
TRAIN, HELD_OUT = (domain.TASK.model_copy(update={"split": split}) for split in ("train", "held_out"))
OPTIONS = BaseOptions(
    transcripts=8, shares=Shares(broken=0.3), layers=2, hidden=64, heads=2, steps=80, batch=6, lr=6e-3, vocabulary=400
)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the memo, the base model in `base/model`, and a file of tasks."""
    folder = tmp_path_factory.mktemp("training")
    lines = [
        DatasetTask(task=task, ops=(task.name,), composer="test", number=number)
        for number, task in enumerate((HELD_OUT, TRAIN))
    ]
    append(folder / "tasks.jsonl", lines)
    with Judges(folder / "memo", domain.OPTIONS) as judges:
        first = fill(judges, [HELD_OUT], limit_s=300)
        assert first.whole and not first.failed
        make_base(OPTIONS, judges, [TRAIN], folder / "base")
    return folder


@pytest.fixture(scope="module")
def checkpoint(training: Path) -> Path:
    return training / "base" / "model"


def test_transcripts_hold_real_verdicts(training: Path, checkpoint: Path) -> None:
    episodes = read_episodes(training / "base" / TRANSCRIPTS)
    assert len(episodes) == OPTIONS.transcripts
    assert any(episode.best_us is not None for episode in episodes)
    report = json.loads((training / "base" / "base.json").read_text())
    assert report["last_loss"] < 0.5 * report["first_loss"]
    settings = load_settings(checkpoint)
    assert settings.context_tokens >= max(len(episode.input_ids) for episode in episodes)
    assert load_dialogue(checkpoint, settings).decode(()) == ""
    # Made once: nothing is played or trained again, and no judge is asked.
    with Judges(training / "memo", domain.OPTIONS) as judges:
        assert make_base(OPTIONS, judges, [TRAIN], training / "base") == checkpoint
        assert judges._pool is None


def test_held_out_tasks_and_searches(training: Path, checkpoint: Path) -> None:
    judge = domain.OPTIONS.model_dump(mode="json", exclude={"device"}, exclude_defaults=True)
    options = EnvironmentOptions(tasks=str(training / "tasks.jsonl"), judge=judge)
    with Judges(training / "memo", domain.OPTIONS) as judges:
        again = fill(judges, [HELD_OUT], limit_s=300)
        assert again.whole and again.seconds < 5
        assert len(table(judges, HELD_OUT)) == 4
    directory = training / "held-out" / "base"
    how = HeldOutOptions(seeds=(0, 1), episodes=2)
    opening = Opening(options, "cpu", training)
    score = evaluate_checkpoint(opening, checkpoint, directory, held_out=how)
    (task,) = score.tasks
    assert task.episodes == 4 and len(task.to_near) == 2
    assert read_lines(directory / SCORES, StageScore) == [score]
    # What is on disk isn't played again: the same score from the same episodes.
    assert evaluate_checkpoint(opening, checkpoint, directory, held_out=how) == score
    found = compare_training(opening, {"base": directory / "base.jsonl"}, budget=4)
    assert {one.name for one in found.searches} == {"base", "random", "playbook"}
    assert found.choices == {HELD_OUT.key: 4}


def test_a_checkpoint_is_a_policy(checkpoint: Path, tmp_path: Path) -> None:
    judge = {"timing_budget_s": 0.3, "trials": 1}
    out = tmp_path / "run"
    first = optimize(HELD_OUT, out=out, device="cpu", precision="fp32", policy=str(checkpoint), turns=3, **judge)
    assert first.outcome == "budget" and first.policy == str(checkpoint)
    opening = first.turns[0]
    assert all(call.tool == "Bash" for call in opening.calls) and all(result.ok for result in opening.results)
    second = resume(out, limits={"turns": 5})
    turns = read_transcript(RunDirectory(out).path)
    assert turns[:3] == first.turns and len(turns) == 5 == len(second.turns)
    assert all(turn.token_ids for turn in turns[1:])


def test_a_folder_that_is_no_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no policy: it has no config\.json"):
        optimize(HELD_OUT, out=tmp_path / "run", device="cpu", policy=str(tmp_path), turns=2)
    with pytest.raises(UsageError, match="No policy 'nowhere'"):
        optimize(HELD_OUT, out=tmp_path / "run2", device="cpu", policy="nowhere", turns=2)
