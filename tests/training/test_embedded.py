"""All stages in one process, on a CPU: killed once in the middle of PPO, taken up again; and what each part leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("verl", reason="make train-env")

import toy

from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.training.config import EpisodeLimits
from cuda_agent.training.engine import platform, worker
from cuda_agent.training.engine.sampler import PolicyCopy
from cuda_agent.training.engine.worker import open_actor
from cuda_agent.training.episodes import Episode, read_episodes
from cuda_agent.training.metrics import MetricsLog, read_metrics
from cuda_agent.training.protect import TrainingHalted
from cuda_agent.training.stages.records import STAGES, TrainingManifest
from cuda_agent.training.stages.rft import EpisodeFunnel
from cuda_agent.training.stages.run import Training


def play(out: Path, *, until: str | None = None) -> str:
    """The program `toy.py`; killed with SIGKILL as soon as it says `until`."""
    # Tests before this one may have joined a process group of this process.
    group = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
    environment = {name: value for name, value in os.environ.items() if name not in group}
    environment |= {"PYTHONPATH": str(Path(toy.__file__).parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, toy.__file__, str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if until is not None and until in line:
                process.send_signal(signal.SIGKILL)
        code = process.wait()
    assert code == (0 if until is None else -signal.SIGKILL), "".join(said)
    return "".join(said)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that was killed in PPO, and went on."""
    out = tmp_path_factory.mktemp("training") / "run"
    play(out, until="ppo step 2/3")
    killed = len(read_metrics(out))
    said = play(out)
    assert "ppo goes on at step" in said and "rft has ended" in said, said
    assert len(read_metrics(out)) > killed
    return out


def test_every_stage_is_there_once(run: Path) -> None:
    manifest = TrainingManifest.read(run)
    assert tuple(one.stage for one in manifest.stages) == STAGES
    assert len(manifest.resumed) == 1
    assert all("held_out_files" in one.numbers for one in manifest.stages if one.policy is not None)
    steps = [line["step"] for line in read_metrics(run) if line["stage"] == "ppo"]
    assert steps == [1, 2, 3]
    versions = [one.policy_version for one in read_episodes(run / "ppo/episodes.jsonl")]
    assert versions == [step for step in (1, 2, 3) for _ in range(8)]
    assert not list((run / "ppo").glob("step-*")), "states of the optimisers are left"


def test_steps_are_told_in_full(run: Path) -> None:
    first, second, _ = [line for line in read_metrics(run) if line["stage"] == "ppo"]
    assert first["critic_only"] == 1 and "clip_fraction" not in first
    wanted = {"reward", "pass_rate", "faster_rate", "entropy", "explained_variance", "clip_fraction", "ratio_max"}
    wanted |= {"update_ratio_max", "turns", "truncated_rate", "tool_error_rate", "judge_s", "share_correct"}
    assert wanted <= second.keys()
    assert all(isinstance(value, int | float) for name, value in second.items() if name != "stage")
    # trainer and sampler agree but for rounding: same tokens, same weights, with and without a cache.
    assert first["ratio_max"] == pytest.approx(1, abs=1e-4) and second["ratio_min"] == pytest.approx(1, abs=1e-4)


def test_the_funnel_is_kept(run: Path) -> None:
    funnel = EpisodeFunnel.read(run / "rft")
    assert funnel.played == 8 and funnel.kept + sum(funnel.dropped.values()) == 8


def test_a_checkpoint_needs_transformers_alone(run: Path) -> None:
    """bfloat16, small shards, nothing of an optimiser; loaded where verl can't be imported."""
    policy = run / "ppo/policy"
    assert all(path.stat().st_size <= 16 << 20 for path in policy.iterdir())
    code = (
        "import sys; sys.modules['verl'] = None; import transformers;"
        f"m = transformers.AutoModelForCausalLM.from_pretrained({str(policy)!r}, dtype='auto');"
        f"transformers.AutoTokenizer.from_pretrained({str(policy)!r}); print(m.dtype)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "bfloat16" in done.stdout


def test_another_configuration_is_refused(run: Path) -> None:
    changed = toy.options(value=None)
    with pytest.raises(UsageError, match="another configuration: value differ"):
        Training(run, changed, toy.ToyDomain()).run(STAGES)


def test_a_stage_needs_those_before_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ppo comes after base"):
        Training(tmp_path / "run", toy.options(), toy.ToyDomain()).run(["ppo"])


def test_what_dies_while_held_out_tasks_are_played_loses_no_step(tmp_path: Path) -> None:
    class Dies(toy.ToyDomain):
        def evaluate(self, checkpoint: Path, directory: Path) -> dict[str, float]:
            if directory.name == "ppo":
                raise StoreError("gone", "again")
            return super().evaluate(checkpoint, directory)

    options = toy.options(**dict.fromkeys(("warmup", "sample", "rft", "value")))
    with pytest.raises(StoreError):
        Training(tmp_path / "run", options, Dies()).run(STAGES)
    (weights,) = (tmp_path / "run/ppo/policy").glob("*.safetensors")
    before, known = weights.read_bytes(), len(read_metrics(tmp_path / "run"))
    end = Training(tmp_path / "run", options, toy.ToyDomain()).run(STAGES).ended("ppo")
    assert end is not None and end.steps == 3 and "held_out_files" in end.numbers
    assert weights.read_bytes() == before and len(read_metrics(tmp_path / "run")) == known
    assert not list((tmp_path / "run/ppo").glob("step-*"))


def test_an_unpaid_episode_is_left_out_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge fails on one of 8 episodes; the updates of actor and critic have the 7 others, in mini-batches of 4 and
    3."""
    learnt: list[list[Episode]] = []
    step = worker._Engine._step

    def counted(self: worker._Engine, episodes: list[Episode], *rest: Any) -> Any:
        learnt.append(list(episodes))
        return step(self, episodes, *rest)

    class Fails(toy.ToyEnvironment):
        def play(self, *tasks: Any, **named: Any) -> list[Episode]:
            first, *others = super().play(*tasks, **named)
            return [first.model_copy(update={"reward": None, "milestone": None, "ratio": None}), *others]

    monkeypatch.setattr(worker._Engine, "_step", counted)
    monkeypatch.setattr(toy, "ToyEnvironment", Fails)
    only = dict.fromkeys(("warmup", "sample", "rft", "value"))
    options = toy.options(**only, ppo={"steps": 1, **toy.STEP, "mini_batch": 4}, evaluate=False)
    Training(tmp_path / "run", options, toy.ToyDomain()).run(STAGES)
    assert [len(part) for part in learnt] == [4, 3, 4, 3]
    for parts in (learnt[:2], learnt[2:]):
        seeds = sorted(one.seed for part in parts for one in part)
        assert len(seeds) == 7 and all(one.reward is not None for part in parts for one in part)
    (line,) = read_metrics(tmp_path / "run")
    assert line["actor_pg_loss"] == line["actor_pg_loss"] and line["critic_vf_loss"] > 0


def test_fine_tuning_learns_the_very_tokens(tmp_path: Path) -> None:
    """Many updates on two episodes: own tokens become likely, observations and the prompt don't count."""
    platform.prepare("cpu")
    toy.tiny_model(tmp_path / "model")
    options = toy.options()
    assert options.rft is not None
    policy = PolicyCopy(tmp_path / "model", options.model, device="cpu")
    with toy.ToyDomain().open(tmp_path, EpisodeLimits()) as opened:
        generate = policy.generate(turn_tokens=6, context_tokens=64, seed=0)
        episodes = opened.environment.play(opened.tasks, generate, seed=0)
    actor = open_actor(options.model, str(tmp_path / "model"), options.rft, seed=0)
    before = actor.log_probabilities(episodes)
    for row, episode in zip(before, episodes, strict=True):
        own = torch.tensor(episode.mask).bool()
        assert torch.allclose(row[own], torch.tensor(episode.log_probabilities)[own], atol=1e-4)
    for step in range(30):
        actor.imitate(episodes, step=step)
    after = actor.log_probabilities(episodes)
    own = torch.cat([torch.tensor(one.mask) for one in episodes]).bool()
    assert torch.cat(after)[own].mean() > torch.cat(before)[own].mean() + 1.0


def test_a_halted_stage_stays_halted(tmp_path: Path) -> None:
    """The ratio of any update is above a limit of 1.000001, so the second step trips it; the first is kept."""
    stage = {"steps": 3, "critic_only_steps": 1, **toy.STEP}
    without = dict.fromkeys(("warmup", "sample", "rft", "value"))
    options = toy.options(**without, ppo=stage, protect={"ratio": 1.001})
    training = Training(tmp_path / "run", options, toy.ToyDomain())
    with pytest.raises(TrainingHalted, match="ppo halted at step 2: importance ratio exploded") as caught:
        training.run(STAGES)
    assert "step-0001/policy" in caught.value.remedy
    with pytest.raises(TrainingHalted, match="halted at step 2"):
        training.run(STAGES)
    (tmp_path / "run/ppo/halted.json").unlink()
    calm = toy.options(**without, ppo=stage, protect={"ratio": None, "explained_variance": None})
    assert Training(tmp_path / "run", calm, toy.ToyDomain()).run(STAGES).ended("ppo") is not None


def test_lines_of_lost_steps_are_dropped(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, "ppo", from_step=1) as metrics:
        for step in (1, 2, 3):
            metrics.add(step, {"reward": float(step), "nothing": float("nan")})
    with open(tmp_path / "metrics.jsonl", "a") as stream:
        stream.write('{"stage": "ppo", "st')
    with MetricsLog(tmp_path, "ppo", from_step=2) as metrics:
        assert [line["step"] for line in metrics.lines] == [1]
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"stage": "ppo", "step": 1, "reward": 1.0}
