"""Both dialogues: calls survive the way to tokens and back, contexts only grow, nonsense is a malformed call."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pocket_domain as domain
from cuda_agent.agent.policy import Brief
from cuda_agent.agent.trained import pocket
from cuda_agent.agent.trained.chat import ChatDialogue
from cuda_agent.agent.trained.offers import assignment, laid_out, laying_out, offers
from cuda_agent.agent.trained.pocket import PocketDialogue
from cuda_agent.core.config import Limits
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import ToolResult

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLANS = offers(domain.graph(), Device.CUDA, Precision.TF32, "key")
BRIEF = Brief(domain.TASK, Device.CUDA, Precision.TF32, Limits(turns=10), [], domain.graph)
CALLS = [
    pocket.take(2), pocket.read(), pocket.read(pocket.BINDING), pocket.change("b", 3, 0), pocket.breaking(),
    pocket.breaking(repair=True), *(pocket.call(name) for name in ("Compile", "Verify", "Profile")), pocket.finish(),
]  # fmt: skip


@pytest.fixture(scope="module")
def small() -> PocketDialogue:
    return PocketDialogue(pocket.train_tokenizer([pocket.prompt_text(BRIEF, PLANS)] * 4, 400))


def chat(template: str = TEMPLATE) -> ChatDialogue:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    plain.train_from_iterator(["a tool call"], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = template
    return ChatDialogue(fast)


@pytest.mark.parametrize("text", CALLS)
def test_a_call_is_a_few_tokens_and_comes_back_as_it_was(small: PocketDialogue, text: str) -> None:
    ids = small.encode_turn(text)
    assert len(ids) <= 10 and ids[-1] == small.stop_id
    (call,) = small.about(BRIEF, PLANS).parse(small.decode_turn(ids), 1).calls
    assert not call.malformed and pocket.call(call.tool, **call.arguments) == text


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 380), max_size=30))
def test_any_tokens_can_be_heard(small: PocketDialogue, ids: list[int]) -> None:
    texts = small.about(BRIEF, PLANS)
    calls = texts.parse(small.decode_turn(ids), 1).calls
    results = [ToolResult(call_id=call.id, text="", ok=not call.malformed) for call in calls]
    assert small.encode_observation(texts.observation(calls, results, 3))


def test_the_prompt_names_operators_shapes_and_plans(small: PocketDialogue) -> None:
    text = small.decode(small.encode_prompt(small.about(BRIEF, PLANS).messages()))
    for part in ("cuda tf32", "mul 64 96", "relu 64 96", "fused pointwise a:5", "split pointwise pointwise pointwise"):
        assert part in text
    assert text.endswith("10 left<|agent|>")


def test_plans_differ_and_their_settings_are_edits() -> None:
    names = {plan.name for plan in PLANS}
    assert names == {"fused", "split"}
    fused = next(plan for plan in PLANS if plan.name == "fused")
    candidates = [fused.candidate(setting) for setting in fused.settings()]
    assert len({one.digest for one in candidates}) == len(candidates) == 5
    assert candidates[0].files == fused.files and assignment("a", 4) in candidates[4].files["model_new.py"]
    assert {path.split("/")[1] for path in laid_out(PLANS)} == {"1", "2"}
    # One argument of a command line holds 128 KiB.
    assert all(len(command) < 120_000 for command in laying_out(PLANS))
    assert [p.name for p in offers(domain.graph(), Device.CUDA, Precision.TF32, "key")] == [p.name for p in PLANS]


def test_a_chat_is_continued_as_its_template_would_write_it() -> None:
    dialogue = chat()
    texts = dialogue.about(BRIEF, PLANS)
    prompt = dialogue.encode_prompt(texts.messages())
    own = dialogue.encode_turn('<tool_call>\n{"name": "Profile", "arguments": {}}\n</tool_call>')
    calls = texts.parse(dialogue.decode_turn(own), 1).calls
    assert [call.tool for call in calls] == ["Profile"]
    said = texts.observation(calls, [ToolResult(call_id="1", text="passed: 90.0 us")], 4)
    answer = dialogue.encode_observation(said)
    text = dialogue.tokenizer.decode([*prompt, *own, *answer])
    assert "class Model(nn.Module)" in text and '"name": "Edit"' not in text
    tail = text.rpartition("</tool_call>")[2]
    assert tail.startswith("<|im_end|>\n<|im_start|>user\n<tool_response") and tail.endswith("<|im_start|>assistant\n")
    assert "passed: 90.0 us" in tail and "[Left: 4 turns.]" in tail
    assert "no tool" in texts.observation((), (), 1)


def test_templates_that_can_not_serve_are_refused() -> None:
    with pytest.raises(UsageError, match="doesn't end answers with its end token"):
        chat("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    with pytest.raises(UsageError, match="no chat template"):
        chat(None)  # type: ignore[arg-type]
