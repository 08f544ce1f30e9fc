"""Fine-tuning and value pretraining in two Ray actors on a CPU: the result of one process, but for rounding."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("verl", reason="make train-env")

import toy
from safetensors.torch import load_file

from cuda_agent.training.engine.batch import mini_batches, spread
from cuda_agent.training.episodes import Episode, read_episodes
from cuda_agent.training.metrics import read_metrics
from cuda_agent.training.stages.records import STAGES
from cuda_agent.training.stages.run import Training


def train(out: Path, **changes: Any) -> list[str]:
    """Base, sampling, fine-tuning and value pretraining; 10 episodes in updates of 3 and 4, which two can't share
    equally without blank ones."""
    said = []
    stages = {
        "sample": {"episodes_per_task": 5, "batch": 10},
        "rft": {"batch": 4, "lr": 1e-3, "micro_batch_tokens": 64, "reward_above": -2.0},
        "value": {"passes": 2, "batch": 4, "lr": 1e-3, "micro_batch_tokens": 64},
    }
    options = toy.options(warmup=None, ppo=None, **stages, **changes)
    Training(out, options, toy.ToyDomain(), lambda phase, text: said.append(f"{phase} {text}")).run(STAGES)
    return said


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: one.float() for path in folder.glob("*.safetensors") for name, one in load_file(path).items()}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rank", [0, 4])
def test_two_actors_learn_what_one_process_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = {"context_tokens": 64, "prompt_tokens": 16, "lora_rank": rank}
    said = train(tmp_path / "two", launcher="ray", model=model, ray={"gpus_per_node": 2, "rollout": "transformers"})
    train(tmp_path / "one", model=model)
    episodes = [read_episodes(tmp_path / run / "sample/episodes.jsonl") for run in ("one", "two")]
    assert [one.response_ids for one in episodes[0]] == [one.response_ids for one in episodes[1]]
    # Each actor holds half of the weights, which verl keeps whole only where they can't be divided.
    for stage, folder in (("rft", "rft/policy"), ("value", "value/critic")):
        counts = [line for line in said if line.startswith(f"{stage} 2 actors hold")]
        held = [
            int(number.replace(",", "")) for number in counts[0].split("hold ")[1].removesuffix(" weights").split(", ")
        ]
        whole = sum(one.numel() for one in weights(tmp_path / "two" / folder).values())
        assert len(held) == 2 and max(held) <= 0.55 * (whole + 20_000 * (rank > 0)) and sum(held) >= whole
        one, two = weights(tmp_path / "one" / folder), weights(tmp_path / "two" / folder)
        start = weights(tmp_path / "one/base/policy")
        assert one.keys() == two.keys() and any(
            not torch.equal(one[name], start[name]) for name in start if name in one
        )
        for name, value in one.items():
            torch.testing.assert_close(two[name], value, atol=1e-3, rtol=1e-2)
    lines = [read_metrics(tmp_path / run) for run in ("one", "two")]
    assert len(lines[0]) == len(lines[1]) == 1 + 3 + 2
    for first, second in zip(*lines, strict=True):
        for name in ("loss", "gradient_norm", "value_loss", "explained_variance"):
            if name in first:
                assert second[name] == pytest.approx(first[name], rel=1e-3, abs=1e-4), (name, first["stage"])


def test_shares_are_equal_and_lose_no_episode() -> None:
    episodes = [episode(length) for length in (9, 1, 2, 8, 3)]
    rows, order = spread(episodes, 2)
    assert rows[:5] == episodes and len(rows) == 6 and rows[5].own_tokens == 0
    assert sorted(order) == list(range(6))
    held = [sum(len(rows[row].input_ids) for row in part) for part in (order[:3], order[3:])]
    assert max(held) - min(held) <= 3
    assert spread(episodes, 1) == (episodes, [0, 1, 2, 3, 4])


def test_a_missing_episode_makes_mini_batches_smaller_and_throws_none_away() -> None:
    parts = mini_batches(range(255), 128, 7)
    assert [len(part) for part in parts] == [128, 127] and sorted(chain(*parts)) == list(range(255))
    assert [len(part) for part in mini_batches(range(129), 128, 7)] == [65, 64]
    assert mini_batches(range(255), 128, 7) == parts != mini_batches(range(255), 128, 8)


def episode(length: int) -> Episode:
    return Episode(
        task_key="k", task_name="n", prompt_ids=(5,), response_ids=(2,) * length, mask=(1,) * length,
        log_probabilities=(0.0,) * length, reward=None, milestone=None, truncated=False, turns=1,
    )  # fmt: skip
