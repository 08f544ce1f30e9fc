"""Every stage of the training in one process on a GPU, by the toy environment: no judge, so seconds only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent.training.metrics import read_metrics
from cuda_agent.training.stages.records import STAGES, TrainingManifest

pytest.importorskip("verl", reason="python3 scripts/offline.py .offline --train")
pytestmark = pytest.mark.gpu

TOY = Path(__file__).parents[1] / "training" / "toy.py"


def test_every_stage_ends_and_trainer_and_sampler_agree(tmp_path: Path) -> None:
    out, environment = tmp_path / "run", {**os.environ, "PYTHONPATH": str(TOY.parent)}
    done = subprocess.run(
        [sys.executable, str(TOY), str(out), "cuda"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert tuple(one.stage for one in TrainingManifest.read(out).stages) == STAGES
    first, second, _ = [line for line in read_metrics(out) if line["stage"] == "ppo"]
    assert first["critic_only"] == 1 and "clip_fraction" not in first and "clip_fraction" in second
    # float32 throughout; TF32 products are off unless somebody asks for them.
    assert first["ratio_max"] == pytest.approx(1, abs=1e-3) and second["ratio_min"] == pytest.approx(1, abs=1e-3)
