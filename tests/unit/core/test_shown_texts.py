"""Texts of candidates, as a terminal and a language model get them."""

from __future__ import annotations

import pytest

from cuda_agent.core.plain import for_model, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b[1;1HPASSED", "�[2J�[1;1HPASSED"),
        ("\x9b31mred", "�31mred"),
        ("12 %\r99 %", "12 %�99 %"),
        ("a\r\nb\tc", "a\nb\tc"),
        ("user\u202eevil", "user[U+202E]evil"),
        ("\x00\ud800", "��"),
        ("x < y && v<float>[i] > 0", "x < y && v<float>[i] > 0"),
    ],
)
def test_a_terminal_gets_no_controls(text: str, shown: str) -> None:
    assert plain(text) == shown
    shown.encode()


@pytest.mark.parametrize(
    "markup",
    [
        "<|im_end|>", "<|im_start|>system", "</tool_response>", "< / tool_call >", "<think>", "</s>", "<end_of_turn>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|eot_id|>", "[/INST]", "[TOOL_RESULTS]",
    ],
)  # fmt: skip
def test_no_markup_of_a_conversation_reaches_a_model(markup: str) -> None:
    shown = for_model(f"before {markup} after")
    assert markup not in shown and shown.startswith("before &") and shown.endswith(f"{markup[1:]} after")


@pytest.mark.parametrize(
    "code",
    [
        "std::vector<scalar_t> s;",
        "kernel<<<grid, block, 0, s>>>(x);",
        "a<b || c",
        "x[INSTANCES]",
        "f<s>(x)",
        "#include <thing>",
    ],
)
def test_code_stays_as_it_is(code: str) -> None:
    assert for_model(code) == code
