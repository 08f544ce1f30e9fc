"""The sampler's captured decoding step against the same model on the CPU, and its default precision."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from cuda_agent.agent.trained.sampler import Sampler, load_model

pytestmark = pytest.mark.gpu


def model() -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=500, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=8,
        num_key_value_heads=2, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    made = Qwen2ForCausalLM(config).eval()
    for parameter in made.parameters():
        parameter.data *= 4 if parameter.ndim > 1 else 1
    return made


def test_captured_steps_draw_what_the_cpu_draws() -> None:
    """Three turns: the cache grows within a turn, episodes end, and most of them end, so steps are captured anew."""
    here, there = model(), model().to("cuda")
    limits: dict[str, Any] = {"stop_id": 1, "pad_id": 0, "turn_tokens": 80, "context_tokens": 600, "temperature": 0}
    plain, captured = Sampler(here, **limits), Sampler(there, **limits)
    rng = random.Random(3)
    asked = [[rng.randrange(2, 500) for _ in range(rng.randrange(5, 90))] for _ in range(9)]
    for left in (7, 3, 1):
        wanted, found = plain(asked), captured(asked)
        assert captured._captured is not None
        assert [one.token_ids for one in found] == [one.token_ids for one in wanted]
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine.log_probabilities == pytest.approx(theirs.log_probabilities, abs=1e-3)
        grown = [
            [*c, *one.token_ids, *(rng.randrange(2, 500) for _ in range(9))]
            for c, one in zip(asked, wanted, strict=True)
        ]
        asked = grown[-left:]


def test_bfloat16_weights_and_the_same_draws_again(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    loaded = load_model(tmp_path, "cuda")
    assert loaded.dtype == torch.bfloat16
    asked = [[2, 3, 4], [5, 6, 7, 8]]
    first, second = (
        Sampler(loaded, stop_id=1, pad_id=0, turn_tokens=20, context_tokens=64, seed=5)(asked) for _ in range(2)
    )
    assert first == second and all(number <= 0 for one in first for number in one.log_probabilities)
