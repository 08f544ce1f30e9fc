"""The sampler against generation without a cache and without padding, token by token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from cuda_agent.agent.trained import rows
from cuda_agent.agent.trained.sampler import Sampled, Sampler
from cuda_agent.core.errors import UsageError

STOP = 1
SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": STOP, "pad_token_id": 0,
}  # fmt: skip


def model(kind: str = "Qwen2", **changes: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **changes)
    made = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for parameter in made.parameters():
        # so that tokens differ in their probabilities.
        parameter.data *= 8 if parameter.ndim > 1 else 1
    return made


def contexts(*lengths: int) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(2, 40) for _ in range(length)] for length in lengths]


def check(made: Any, asked: Sequence[Sequence[int]], found: Sequence[Sampled], *, greedy: bool = True) -> None:
    """Every token has the probability that the whole context gives it, and is the most likely one."""
    for context, sampled in zip(asked, found, strict=True):
        ids = [*context, *sampled.token_ids]
        with torch.no_grad():
            logs = made(torch.tensor([ids])).logits[0, len(context) - 1 : -1].log_softmax(-1)
        own = torch.tensor(sampled.token_ids)
        assert not greedy or torch.equal(logs.argmax(-1), own)
        torch.testing.assert_close(logs.gather(1, own[:, None])[:, 0], torch.tensor(sampled.log_probabilities))
        assert sampled.cut == (STOP not in sampled.token_ids)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """What each forward pass of the sampler read: rows, tokens, and tokens with logits."""
    found: list[tuple[int, int, int]] = []
    forward = Sampler._forward

    def counted(self: Sampler, ids: Any, *rest: Any) -> Any:
        logits = forward(self, ids, *rest)
        found.append((*ids.shape, logits.shape[0]))
        return logits

    monkeypatch.setattr(Sampler, "_forward", counted)
    return found


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 8}),
        ("Llama", {}),
        ("Mistral", {"sliding_window": 7}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    ],
)
def test_turns_of_unequal_length(kind: str, changes: dict[str, Any]) -> None:
    made = model(kind, **changes)
    sampler = Sampler(made, stop_id=STOP, pad_id=0, turn_tokens=12, context_tokens=400, temperature=0)
    asked, rng = contexts(3, 9, 5, 30), random.Random(2)
    for _ in range(3):
        found = sampler(asked)
        check(made, asked, found)
        asked = [
            [*context, *one.token_ids, *(rng.randrange(2, 40) for _ in range(rng.randrange(1, 25)))]
            for context, one in zip(asked, found, strict=True)
        ]


def test_a_known_beginning_is_not_read_again(passes: list[tuple[int, int, int]]) -> None:
    made = model()
    made.lm_head.weight.data[STOP] = 0
    sampler = Sampler(made, stop_id=STOP, pad_id=0, turn_tokens=4, context_tokens=400, temperature=0)
    asked = contexts(70, 90, 80, 60, 50)
    found = sampler(asked)
    assert passes[0][1] == 89 and all(shape[1] == 1 for shape in passes[1:]) and len(passes) == 1 + 4
    assert all(shape[2] == shape[0] for shape in passes), "logits of the last token alone"
    passes.clear()
    # One episode ended, the others grew by 4 own tokens and 3 answered ones; the fourth own token was never read.
    asked = [[*context, *one.token_ids, 7, 8, 9] for context, one in zip(asked, found, strict=True)]
    rest = [*asked[:2], *asked[3:]]
    found = sampler(rest)
    check(made, rest, found)
    assert passes[0] == (5, 3, 5)
    passes.clear()
    # Most episodes ended: the cache shrinks to the one that is left.
    last = [[*rest[1], *found[1].token_ids, 5]]
    check(made, last, sampler(last))
    assert [shape[:2] for shape in passes] == [(1, 1)] * 5 and len(sampler._rows.tokens) == 1


def test_long_contexts_are_read_in_parts(passes: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_agent.agent.trained import sampler as module

    monkeypatch.setattr(module, "_PREFILL", 32)
    made = model()
    asked = contexts(10, 8, 75, 3, 2, 9)
    sampler = Sampler(made, stop_id=STOP, pad_id=0, turn_tokens=70, context_tokens=90, temperature=0)
    found = sampler(asked)
    assert max(rows * tokens for rows, tokens, _ in passes if tokens > 1) <= 32
    check(made, asked, found)
    assert len(found[2].token_ids) <= 15


def test_limits_and_seeds() -> None:
    made = model()
    asked = contexts(3, 9, 5, 30)

    def sampler(limit: int, seed: int = 4, most: int = 256) -> Sampler:
        return Sampler(made, stop_id=STOP, pad_id=0, turn_tokens=12, context_tokens=limit, seed=seed, most_at_once=most)

    assert sampler(32)(asked)[3].cut and len(sampler(32)(asked)[3].token_ids) <= 2
    assert sampler(64)(asked) == sampler(64)(asked) != sampler(64, seed=5)(asked)
    (full,) = sampler(30)([asked[3]])
    assert full.cut and full.token_ids == ()
    check(made, asked, sampler(64, most=3)(asked), greedy=False)


def test_as_many_rows_as_the_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of keys and values, two heads of eight float32 numbers: 256 bytes a token. A quarter of a page of
    memory is the cache's, and a cache may be half as large again as its contexts."""
    made = model()
    pages = {"SC_PHYS_PAGES": 3 * 256, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(rows.os, "sysconf", pages.__getitem__)
    assert rows.token_bytes(made.config, 4) == 256

    def most(context_tokens: int) -> int:
        return Sampler(made, stop_id=STOP, pad_id=0, turn_tokens=1, context_tokens=context_tokens).most

    assert [most(tokens) for tokens in (64, 1024, 2048, 1 << 20)] == [32, 2, 1, 1]


def test_a_seed_can_be_set_again_and_the_cache_stays(passes: list[tuple[int, int, int]]) -> None:
    made = model()
    asked = contexts(30)

    def sampler() -> Sampler:
        return Sampler(made, stop_id=STOP, pad_id=0, turn_tokens=9, context_tokens=90, seed=3)

    kept = sampler()
    first = kept.seeded(7, 4)(asked)
    assert first == sampler().seeded(7, 4)(asked) and len(first[0].token_ids) <= 4
    longer = [[*asked[0], *first[0].token_ids, 5, 6]]
    passes.clear()
    second = kept.seeded(8)(longer)
    assert max(shape[1] for shape in passes) <= 3
    check(made, longer, second, greedy=False)
    assert second[0].token_ids == sampler().seeded(8, 4)(longer)[0].token_ids


def test_other_calls_of_the_model_stay_as_they_were() -> None:
    made = model()
    ids = torch.tensor(contexts(6, 6))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    with torch.no_grad():
        before = made(ids, attention_mask=mask).logits
        Sampler(made, stop_id=STOP, pad_id=0, turn_tokens=1, context_tokens=9)([[5, 6]])
        torch.testing.assert_close(made(ids, attention_mask=mask).logits[1:], before[1:])
        torch.testing.assert_close(made(ids, attention_mask=mask).logits[0, 2:], before[0, 2:])


def test_layers_that_the_cache_can_not_serve_are_refused() -> None:
    made = model()
    made.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(UsageError, match="layers of full_attention, linear_attention"):
        Sampler(made, stop_id=STOP, pad_id=0, turn_tokens=1, context_tokens=9)
