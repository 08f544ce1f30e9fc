"""One PPO run by verl's own trainer on Ray, on a CPU: a critic-only step, a kill, and the rest of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="make train-env")

import toy
from transformers import AutoModelForCausalLM

from cuda_agent.training.config import preset_names, read_options
from cuda_agent.training.episodes import read_episodes
from cuda_agent.training.metrics import read_metrics
from cuda_agent.training.stages.records import TrainingManifest
from cuda_agent.training.stages.run import check


def play(out: Path, *, until: str | None = None) -> str:
    """The program `toy.py`; killed with SIGKILL as soon as it says `until`."""
    environment = {**os.environ, "PYTHONPATH": str(Path(toy.__file__).parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, toy.__file__, str(out), "ray"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if until is not None and until in line:
                process.send_signal(signal.SIGKILL)
        code = process.wait()
    log = out / "ppo/verl.log"
    tail = log.read_text()[-3000:] if log.exists() else ""
    assert code == (0 if until is None else -signal.SIGKILL), "".join(said) + tail
    return "".join(said)


def drivers(out: Path) -> list[str]:
    """Processes of verl's trainer for this training."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(out) in words and "training.ray.main" in words:
            found.append(words)
    return found


@pytest.mark.timeout(1500)
def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    play(out, until="ppo step 1/2")
    deadline = time.monotonic() + 120
    while drivers(out) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not drivers(out), "the trainer outlives who began it"
    play(out)
    assert [line["step"] for line in read_metrics(out)] == [1, 2]
    first, second = read_metrics(out)
    assert "clip_fraction" not in first and "actor_pg_loss" in second
    for name in ("reward", "entropy", "explained_variance", "pass_rate", "turns", "wall_s"):
        assert name in first and name in second, name
    episodes = [one for path in (out / "ppo/episodes").iterdir() for one in read_episodes(path)]
    assert sum(one.policy_version == 2 for one in episodes) == 8
    assert all(one.mask[-1] == 1 and 0 in one.mask for one in episodes)
    end = TrainingManifest.read(out).ended("ppo")
    assert end is not None and end.policy == "ppo/policy" and end.critic == "ppo/critic"
    model = AutoModelForCausalLM.from_pretrained(out / "ppo/policy", dtype="auto")
    assert str(model.dtype) == "torch.bfloat16"


@pytest.mark.parametrize("name", preset_names())
def test_verl_accepts_every_preset(name: str) -> None:
    """Composed with verl's own schema, launcher by launcher; nothing is run."""
    check(read_options(Path(name), ["device=cpu"]))
