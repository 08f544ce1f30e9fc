"""The preset `kernel` at its smallest: a model of two layers with the real tokenizer, adapters on both, real builds and
real verdicts on a CPU. The model has learnt its only answers by heart, so that there is something to judge."""

from __future__ import annotations

import math
from pathlib import Path

import chat_models
import pytest
import torch

pytest.importorskip("verl", reason="make train-env")

from transformers import AutoModelForCausalLM

import pocket_domain as domain
from cuda_agent.agent.policy import Brief
from cuda_agent.agent.trained.chat import ChatDialogue
from cuda_agent.agent.trained.dialogue import DialogueSettings
from cuda_agent.core.config import Limits
from cuda_agent.core.lines import append
from cuda_agent.core.records import Task
from cuda_agent.tasks.records import DatasetTask
from cuda_agent.training.config import read_options
from cuda_agent.training.domain import KernelDomain
from cuda_agent.training.episodes import Episode, read_episodes
from cuda_agent.training.held_out import last_score
from cuda_agent.training.stages.records import STAGES
from cuda_agent.training.stages.rft import EpisodeFunnel
from cuda_agent.training.stages.run import Training, check

KERNEL = """void launch(const float* x, float* out) {
  for (int i = 0; i < 6144; ++i) out[i] = std::max(x[i] * 2 + 1, 0.0f);
}
"""
#: right in two of three.
ANSWERS = [f"```cpp\n{KERNEL}```"] * 2 + [f"```cpp\n{KERNEL.replace('+ 1', '+ 3')}```"]


def learnt_by_heart(directory: Path) -> None:
    """Answers the task with the right or a wrong kernel, whatever was said."""
    chat_models.save_model("qwen2_5", directory, hidden_size=64, intermediate_size=128, tie_word_embeddings=False)
    dialogue = ChatDialogue(chat_models.tokenizer("qwen2_5"), "short", examples=0)
    brief = Brief(domain.TASK, domain.OPTIONS.device, domain.OPTIONS.precision, Limits(turns=1), [], domain.graph)
    prompt = dialogue.encode_prompt(dialogue.about(brief, ()).messages())
    own = torch.tensor([dialogue.encode_turn(answer) for answer in ANSWERS])
    ids = torch.cat([torch.tensor([prompt] * len(own)), own], 1)
    model = AutoModelForCausalLM.from_pretrained(directory)
    # All other words have the number 0, so their part of the softmax is known.
    words, wanted = own.unique(return_inverse=True)
    rest = torch.full((1, 1), math.log(len(model.lm_head.weight) - len(words)))
    head = torch.nn.Parameter(0.1 * torch.randn(len(words), 64))
    adam = torch.optim.AdamW([head, *model.model.layers.parameters(), *model.model.norm.parameters()], lr=1e-2)
    for _ in range(400):
        hidden = model.model(ids).last_hidden_state[:, -own.shape[1] - 1 : -1].flatten(0, 1)
        numbers = torch.cat([hidden @ head.T, rest.expand(len(hidden), 1)], 1)
        loss = torch.nn.functional.cross_entropy(numbers, wanted.flatten())
        if loss.item() < 0.015:
            break
        loss.backward()
        adam.step()
        adam.zero_grad()
    assert loss.item() < 0.05, loss.item()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[words] = head
    model.save_pretrained(directory)


def test_check_composes_the_preset() -> None:
    check(read_options(Path("kernel")))


def test_all_stages_with_real_verdicts(tmp_path: Path) -> None:
    learnt_by_heart(tmp_path / "model")
    tasks = [domain.TASK.model_copy(update={"split": split}) for split in ("train", "held_out")]
    append(tmp_path / "tasks.jsonl", [_line(task, number) for number, task in enumerate(tasks)])
    judge = domain.OPTIONS.model_dump(mode="json", exclude={"device"}, exclude_defaults=True)
    # Each token costs logits of the whole vocabulary, so prompts are short.
    limits = {"kind": "short", "examples": 0, "turns": 1, "turn_tokens": 96}
    step = ["limits.examples=0", "steps=1", "batch=4", "mini_batch=4", "critic_only_steps=0", "limits.turn_tokens=96"]
    changes = [
        "device=cpu", f"model.path={tmp_path / 'model'}", "model.lora_rank=4", "model.train_precision=float32",
        "model.sample_precision=float32", f"environment.tasks={tmp_path / 'tasks.jsonl'}", f"environment.judge={judge}",
        *(f"{stage}.{one}" for stage in ("warmup", "ppo") for one in step), "ppo.limits.turns=2",
        "sample.episodes_per_task=4", *(f"sample.limits.{one}" for one in ("examples=0", "turn_tokens=96", "turns=2")),
        "rft.batch=4",
        "value.batch=4", "value.passes=1", "held_out.episodes=2",
        f"held_out.limits={limits}",
    ]  # fmt: skip
    options = read_options(Path("kernel"), changes)
    out = tmp_path / "run"
    manifest = Training(out, options, KernelDomain(options, out)).run(STAGES)
    assert tuple(one.stage for one in manifest.stages) == STAGES
    single = read_episodes(out / "warmup/episodes.jsonl")
    assert len(single) == 4 and all(one.turns == 1 and set(one.mask) == {1} for one in single)
    several = read_episodes(out / "ppo/episodes.jsonl")
    assert any(one.turns == 2 and 0 in one.mask for one in several)
    played = [*single, *several, *read_episodes(out / "sample/episodes.jsonl")]
    assert {_is_paid(one) for one in played} == {True, False}, [one.reward for one in played]
    assert EpisodeFunnel.read(out / "rft").kept > 0
    score = last_score(out, "ppo")
    assert score is not None and score.tasks[0].episodes == 2
    settings = DialogueSettings.read(out / "ppo/policy")
    assert (settings.kind, settings.turns, settings.turn_tokens) == ("short", 2, 96)


def _is_paid(episode: Episode) -> bool:
    return (episode.reward or 0.0) > 0


def _line(task: Task, number: int) -> DatasetTask:
    return DatasetTask(task=task, ops=(task.name,), composer="test", number=number)
