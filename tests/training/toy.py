"""A training small enough for a test: a tiny model, and an environment of two turns with a deterministic judge.

The judge pays 3 for own tokens that are all even, 2 and 1 for many and some, -1 for few: something that a policy can
learn within a few steps. Run as a program, it is a training that a test can kill:
`python toy.py OUT [ray | cuda]`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cuda_agent.agent.trained.sampler import Sampled
from cuda_agent.core.enums import Milestone
from cuda_agent.core.records import Task
from cuda_agent.training.config import EpisodeLimits, TrainingOptions
from cuda_agent.training.episodes import Episode, Generate
from cuda_agent.training.stages.stage import OpenDomain

PROMPT, OBSERVATION, STOP, VOCABULARY = (5, 6, 7), (8, 9), 1, 64
STEP: dict[str, Any] = {"batch": 8, "actor_lr": 3e-3, "critic_lr": 3e-3, "micro_batch_tokens": 512}


def options(**changes: Any) -> TrainingOptions:
    """Every stage at its smallest."""
    values: dict[str, Any] = {
        "name": "toy",
        "device": "cpu",
        "model": {"context_tokens": 64, "prompt_tokens": 16},
        "warmup": {"steps": 1, **STEP},
        "sample": {"episodes_per_task": 4, "batch": 8},
        "rft": {"batch": 4, "lr": 1e-3, "micro_batch_tokens": 512},
        "value": {"passes": 2, "batch": 8, "lr": 1e-3, "micro_batch_tokens": 512},
        "ppo": {"steps": 3, "critic_only_steps": 1, "curriculum": {}, **STEP},
        "protect": {"explained_variance": None},
    }
    return TrainingOptions.parse({**values, **changes})


def tiny_model(directory: Path) -> None:
    """A Qwen2 of a few thousand weights, with a tokenizer of as many words as it has tokens."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    words = {"<pad>": 0, "<stop>": STOP, **{f"w{number}": number for number in range(2, VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<stop>", pad_token="<pad>")
    fast.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=STOP, pad_token_id=0,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(directory)
    fast.save_pretrained(directory)


class ToyEnvironment:
    """Two turns, or one."""

    def __init__(self, turns: int) -> None:
        self._turns = turns

    def rollout(self, task: Task) -> ToyRollout:
        return ToyRollout(task, self._turns)

    def play(self, tasks: Sequence[Task], generate: Generate, *, seed: int, policy_version: int = 0) -> list[Episode]:
        rollouts = [self.rollout(task) for task in tasks]
        for _ in range(self._turns):
            for one, drawn in zip(rollouts, generate([one.context for one in rollouts]), strict=True):
                one.take(drawn)
                one.act()
        return [one.episode(policy_version=policy_version, seed=seed) for one in rollouts]


class ToyRollout:
    """What `environment.rollout.Rollout` is, without a workspace."""

    room = 6
    ended = False

    def __init__(self, task: Task, turns: int) -> None:
        self.task, self._turns, self._said = task, turns, 0
        self.response, self.mask, self.numbers = list[int](), list[int](), list[float]()

    @property
    def context(self) -> list[int]:
        return [*PROMPT, *self.response]

    def open(self) -> None: ...

    def close(self) -> None: ...

    def settle(self) -> None: ...

    def fail(self) -> None: ...

    def take(self, sampled: Sampled) -> None:
        self._said += 1
        self._add(sampled.token_ids, sampled.log_probabilities, 1)

    def act(self) -> None:
        self.ended = self._said == self._turns
        if not self.ended:
            self._add(OBSERVATION, [0.0] * len(OBSERVATION), 0)

    def _add(self, tokens: Sequence[int], numbers: Sequence[float], own: int) -> None:
        self.response += tokens
        self.numbers += numbers
        self.mask += [own] * len(tokens)

    def episode(self, *, policy_version: int, seed: int) -> Episode:
        own = [token for token, mine in zip(self.response, self.mask, strict=True) if mine]
        share = sum(token % 2 == 0 for token in own) / len(own)
        reward = 3.0 if share > 0.9 else 2.0 if share > 0.6 else 1.0 if share > 0.4 else -1.0
        return Episode(
            task_key=self.task.key, task_name=self.task.name, prompt_ids=PROMPT, response_ids=tuple(self.response),
            mask=tuple(self.mask), log_probabilities=tuple(self.numbers), reward=reward,
            milestone=Milestone.FAILED if reward < 0 else list(Milestone)[int(reward)], truncated=False,
            turns=self._turns, calls=self._turns, evaluations=1, ratio=None if reward < 0 else reward,
            policy_version=policy_version, seed=seed,
        )  # fmt: skip


class ToyDomain:
    """Two tasks; nothing is held out."""

    def __init__(self, options: TrainingOptions | None = None, directory: Path | None = None) -> None: ...

    @contextmanager
    def open(self, checkpoint: Path, limits: EpisodeLimits) -> Iterator[OpenDomain]:
        tasks = [Task(name=name, source=f"# {name}", origin=name) for name in ("one", "two")]
        yield OpenDomain(ToyEnvironment(limits.turns or 2), tasks, turn_tokens=6, context_tokens=64)

    def in_cluster(self) -> ToyDomain:
        return self

    def base(self, directory: Path) -> Path:
        tiny_model(directory / "made")
        return directory / "made"

    def evaluate(self, checkpoint: Path, directory: Path) -> dict[str, float]:
        return {"files": float(len(list(checkpoint.iterdir())))}


def main() -> None:
    from cuda_agent.training.stages.records import STAGES
    from cuda_agent.training.stages.run import Training

    def say(phase: str, text: str) -> None:
        sys.stdout.write(f"{phase} {text}\n")
        sys.stdout.flush()

    changes: dict[str, Any] = {}
    if sys.argv[2:] == ["cuda"]:
        model = {"context_tokens": 64, "prompt_tokens": 16, "sample_precision": "float32"}
        changes = {"device": "cuda", "model": model}
    if sys.argv[2:] == ["ray"]:
        ray = {"gpus_per_node": 1, "rollout": "transformers", "agent_workers": 1}
        stage = {"steps": 2, "critic_only_steps": 1, "whiten": True, **STEP}
        changes = {"launcher": "ray", "ray": ray, "ppo": stage, **dict.fromkeys(("warmup", "sample", "rft", "value"))}
    Training(Path(sys.argv[1]), options(**changes), ToyDomain(), say).run(STAGES)


if __name__ == "__main__":
    # under its own name, as the processes of the launcher `ray` find its classes.
    import toy

    toy.main()
