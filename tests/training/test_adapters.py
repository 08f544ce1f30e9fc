"""Low-rank adapters on actor and critic: what learns, what is saved, and what a sampler takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("verl", reason="make train-env")

import toy
from transformers import AutoModelForCausalLM

from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.training.config import EpisodeLimits, ModelOptions
from cuda_agent.training.engine import platform
from cuda_agent.training.engine.checkpoints import save_critic, save_policy, take_weights
from cuda_agent.training.engine.sampler import PolicyCopy
from cuda_agent.training.engine.worker import check_adapters, open_actor, open_critic
from cuda_agent.training.episodes import Episode, read_episodes
from cuda_agent.training.metrics import read_metrics
from cuda_agent.training.stages.records import STAGES
from cuda_agent.training.stages.run import Training

LORA = {"context_tokens": 64, "prompt_tokens": 16, "lora_rank": 4, "lora_alpha": 16}
MODEL = ModelOptions.model_validate(LORA)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    platform.prepare("cpu")
    toy.tiny_model(tmp_path / "model")
    return tmp_path / "model"


def play(policy: PolicyCopy) -> list[Episode]:
    with toy.ToyDomain().open(Path(), EpisodeLimits()) as opened:
        generate = policy.generate(turn_tokens=6, context_tokens=64, seed=0)
        return opened.environment.play(opened.tasks, generate, seed=0)


def test_the_actor_s_adapter_learns_and_the_sampler_follows(model: Path, tmp_path: Path) -> None:
    options = toy.options()
    assert options.rft is not None
    sampler = PolicyCopy(model, MODEL, device="cpu")
    episodes = play(sampler)
    actor = open_actor(MODEL, str(model), options.rft, seed=0)
    trained = [name for name, one in actor._worker.engine.module.named_parameters() if one.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    before = torch.cat(actor.log_probabilities(episodes))
    for step in range(20):
        actor.imitate(episodes, step=step)
    rows = actor.log_probabilities(episodes)
    own = torch.cat([torch.tensor(one.mask) for one in episodes]).bool()
    assert torch.cat(rows)[own].mean() > before[own].mean() + 0.05
    # The sampler's numbers are the trainer's, but for verl's bfloat16 on the way.
    sampler.load(actor.weights())
    again = play(sampler)
    for row, episode in zip(actor.log_probabilities(again), again, strict=True):
        mine = torch.tensor(episode.mask).bool()
        torch.testing.assert_close(row[mine], torch.tensor(episode.log_probabilities)[mine], atol=0.05, rtol=0)
    # Merging for the sampler left the trainer as it was; saved and loaded, it is the same again.
    actor.save(tmp_path / "state")
    other = open_actor(MODEL, str(model), options.rft, seed=1)
    other.load(tmp_path / "state")
    for row, found in zip(rows, other.log_probabilities(episodes), strict=True):
        torch.testing.assert_close(found, row)
    policy = save_policy(actor.weights(), str(model), tmp_path / "policy")
    plain = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    start = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.allclose(plain.state_dict()[name], start.state_dict()[name], atol=1e-3)


def test_the_critic_s_adapter_learns(model: Path, tmp_path: Path) -> None:
    options = toy.options()
    assert options.value is not None
    episodes = play(PolicyCopy(model, MODEL, device="cpu"))
    critic = open_critic(MODEL, str(model), options.value, seed=0)
    trained = [name for name, one in critic._worker.engine.module.named_parameters() if one.requires_grad]
    heads = {"base_model.model.score.weight", "base_model.model.score.bias"}
    assert heads < set(trained) and all("lora_" in name for name in set(trained) - heads)
    values = critic.values(episodes)
    targets = [torch.full_like(row, 2.0) for row in values]
    losses = [critic.update(episodes, values, targets, step=step)["critic/vf_loss"] for step in range(40)]
    assert losses[-1] < losses[0] / 2
    path = save_critic(critic.weights(), str(model), tmp_path / "critic")
    other = open_critic(MODEL, str(path), options.value, seed=1)
    for row, found in zip(critic.values(episodes), other.values(episodes), strict=True):
        torch.testing.assert_close(found, row, atol=0.05, rtol=0)


def test_all_stages_with_adapters(tmp_path: Path) -> None:
    Training(tmp_path, toy.options(model=LORA), toy.ToyDomain()).run(STAGES)
    lines = [line for line in read_metrics(tmp_path) if line["stage"] == "ppo"]
    assert [line["step"] for line in lines] == [1, 2, 3] and "clip_fraction" in lines[1]
    assert len(read_episodes(tmp_path / "ppo/episodes.jsonl")) == 24


def test_adapters_that_can_not_be_merged_are_refused(model: Path) -> None:
    """The adapter lies in no sharded layer, which verl's merging passes over."""
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(model), LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(UsageError, match=r"can't be merged outside of its layers: .*q_proj"):
        check_adapters(adapted, str(model))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda own: {**own, "lm_head.lora_A.default.weight": own["lm_head.weight"]}, "no weight lm_head.lora_A"),
        (lambda own: {f"base_model.model.{name}": one for name, one in own.items()}, "no weight base_model"),
        (lambda own: dict(list(own.items())[1:]), "lack model.embed_tokens.weight"),
    ],
)
def test_weights_that_are_not_the_model_s_are_refused(model: Path, changed: Any, said: str) -> None:
    own = AutoModelForCausalLM.from_pretrained(model)
    take_weights(own, own.state_dict().items())
    take_weights(own, ())
    with pytest.raises(StoreError, match=said):
        take_weights(own, changed(own.state_dict()).items())
