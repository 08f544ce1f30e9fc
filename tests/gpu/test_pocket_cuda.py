"""The pocket preset's parts on a GPU: a whole table, transcripts, a base model, held-out tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

import pocket_domain as domain
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.lines import append
from cuda_agent.core.records import Task
from cuda_agent.tasks.records import DatasetTask
from cuda_agent.training.environment.judges import Judges
from cuda_agent.training.environment.opening import EnvironmentOptions, Opening
from cuda_agent.training.held_out import HeldOutOptions, evaluate_checkpoint
from cuda_agent.training.pocket.base import BaseOptions, make_base
from cuda_agent.training.pocket.table import fill, table

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

SOURCE = domain.SOURCE.replace("torch.randn(64, 96)", "torch.randn(4096, 4096)")
TASK = Task(name="scale", source=SOURCE)
HELD_OUT = Task(name="tanh", source=SOURCE.replace("torch.relu", "torch.tanh"), split="held_out")


def test_a_table_a_base_model_and_held_out_tasks(tmp_path: Path) -> None:
    lines = [
        DatasetTask(task=task, ops=(task.name,), composer="test", number=number)
        for number, task in enumerate((TASK, HELD_OUT))
    ]
    append(tmp_path / "tasks.jsonl", lines)
    judge = {"timing_budget_s": 1.5}
    with Judges(tmp_path / "memo", JudgeOptions(device=Device.CUDA, **judge)) as judges:
        filled = fill(judges, [TASK, HELD_OUT], limit_s=500)
        assert filled.whole and not filled.failed
        times = {one.name: one.us for one in table(judges, TASK) if not any(one.setting.values())}
        assert times["fused"] and times["split"] and times["fused"] < times["split"]
        options = BaseOptions(transcripts=32, layers=2, hidden=64, heads=2, steps=100, batch=16, vocabulary=400)
        checkpoint = make_base(options, judges, [TASK], tmp_path / "base")
        assert judges.memo.hit_rate > 0.5
    environment = EnvironmentOptions(tasks=str(tmp_path / "tasks.jsonl"), judge=judge)
    how = HeldOutOptions(seeds=(0,), episodes=4)
    opening = Opening(environment, "cuda", tmp_path)
    score = evaluate_checkpoint(opening, checkpoint, tmp_path / "held-out" / "base", held_out=how)
    assert score.tasks[0].episodes == 4
