"""The memory of a stage by part: a small model by hand, and the preset of eight billion weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cuda_agent.core.errors import UsageError
from cuda_agent.training.config import TrainingOptions, read_options
from cuda_agent.training.memory import count

pytest.importorskip("transformers")

#: embeddings and a tied head 40 x 32 = 1,280; a layer: q and o 2 x 32 x 32, their biases (q 32), k and v 2 x 32 x 16
#: with biases 2 x 16, three products 32 x 64, two norms of 32; a last norm of 32.
SIZES = {
    "model_type": "qwen2", "vocab_size": 40, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip
LAYER = 2 * 32 * 32 + 32 + 2 * 32 * 16 + 2 * 16 + 3 * 32 * 64 + 2 * 32
ACTOR = 40 * 32 + 2 * LAYER + 32
CRITIC = ACTOR + 32 + 1


def options(**changes: Any) -> TrainingOptions:
    step = {"steps": 1, "batch": 8, "actor_lr": 1e-3, "critic_lr": 1e-3, "micro_batch_tokens": 100, "whiten": True}
    values: dict[str, Any] = {"name": "small", "model": {"path": "/nowhere", "sizes": SIZES}, "ppo": step}
    return TrainingOptions.parse({**values, **changes})


def test_a_small_model_by_hand() -> None:
    (ppo,) = count(options())
    assert ppo.weights == ppo.gradients == 4 * (ACTOR + CRITIC) and ppo.optimizer == 8 * (ACTOR + CRITIC)
    # Two layers of 12 x 32 + 3 x 64 numbers a token, and the logits twice.
    assert ppo.activations == 100 * 4 * (2 * (12 * 32 + 3 * 64) + 2 * 40)
    # Two layers of keys and values, two heads of 8, in bfloat16, over 2048 tokens.
    assert ppo.sampler == 2 * ACTOR and ppo.cache == 2 * 2 * 2 * 8 * 2 * 2048
    assert ppo.total == 16 * (ACTOR + CRITIC) + max(ppo.activations, ppo.sampler + ppo.cache)


def test_shards_divide_and_what_waits_in_the_host_s_memory_does_not_count() -> None:
    (two,) = count(options(launcher="ray", ray={"gpus_per_node": 2}))
    assert two.weights == 4 * (ACTOR + CRITIC) / 2 and two.beside
    (one,) = count(options(launcher="ray", ray={"gpus_per_node": 2, "offload": True}))
    assert one.weights == 4 * CRITIC / 2 and not one.beside
    assert one.total == max(16 * CRITIC / 2 + one.activations, one.sampler + one.cache)


def test_adapters_are_trained_alone() -> None:
    (ppo,) = count(options(model={"path": "/nowhere", "sizes": SIZES, "lora_rank": 3}))
    adapters = 2 * 3 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 64))
    assert ppo.gradients == 4 * (2 * adapters + 32) and ppo.weights == 4 * (ACTOR + CRITIC + 2 * adapters)


def test_a_model_that_is_not_known_yet_is_not_counted() -> None:
    assert count(options(model={})) == [] == count(options(model={"path": "/nowhere"}))


def test_eight_billion_weights_fit_on_four_cards_of_80_gb_and_not_on_less() -> None:
    found = {one.stage: one for one in count(read_options(Path("qwen-8b")))}
    assert list(found) == ["warmup", "sample", "rft", "value", "ppo"]
    assert found["sample"].sampler / 2 == pytest.approx(8.19e9, rel=1e-3)
    assert all(0 < one.total < 80e9 for one in found.values())
    for change in ("ray.gpus_per_node=2", "ray.offload=false", "card_gb=40"):
        with pytest.raises(
            UsageError, match=r"^warmup: .* GB a card \(weights .*cache 4\.8\), and a card has \d+"
        ) as told:
            count(read_options(Path("qwen-8b"), [change]))
        assert "\n" not in str(told.value)
