"""Tokenizers of real chat models: the vocabulary of Qwen's models from the package `dashscope`, special tokens as their
models have them, and chat templates from the package `trl`. Nothing of either package is imported.

The merges are equal to those of the published Qwen2.5 models, in number and order.
"""

from __future__ import annotations

import base64
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = (
    "endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start quad_end vision_start "
    "vision_end vision_pad image_pad video_pad <tool_call> </tool_call> fim_prefix fim_middle fim_suffix fim_pad "
    "repo_name file_sep <tool_response> </tool_response> <think> </think>"
)
_LLAMA = "begin_of_text end_of_text start_header_id end_header_id eot_id"
#: template -> added tokens, the end of an answer, padding, the beginning.
MODELS = {
    "qwen2_5": (_QWEN, "<|im_end|>", "<|endoftext|>", None),
    "qwen3": (_QWEN, "<|im_end|>", "<|endoftext|>", None),
    "llama3": (_LLAMA, "<|eot_id|>", "<|end_of_text|>", "<|begin_of_text|>"),
    "llama3_1": (_LLAMA, "<|eot_id|>", "<|end_of_text|>", "<|begin_of_text|>"),
}


@cache
def tokenizer(name: str) -> Any:
    """The tokenizer of a chat model. Llama's has Qwen's words."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    added, end, padding, beginning = MODELS[name]
    vocabulary, merges = _words()
    plain = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    plain.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    plain.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    plain.decoder = decoders.ByteLevel()
    for word in added.split():
        text, special = (
            (word, False) if word.startswith("<") else (f"<|{word}|>", not word.startswith(("fim", "repo", "file")))
        )
        plain.add_tokens([AddedToken(text, special=special, normalized=False)])
    made = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=end, pad_token=padding, bos_token=beginning)
    made.chat_template = (_package("trl") / f"chat_templates/{name}.jinja").read_text()
    return made


def save_model(name: str, directory: Path, **changes: Any) -> None:
    """A Qwen2 of two small layers with a real tokenizer, and no settings of a dialogue."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    words = tokenizer(name)
    sizes: dict[str, Any] = {
        "vocab_size": 151_936, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
    }  # fmt: skip
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**{**sizes, **changes})).save_pretrained(directory)
    words.save_pretrained(directory)


@cache
def _words() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges from the ranks of byte strings. A token's merge is the last one of its own encoding."""
    ranks = {}
    for line in (_package("dashscope") / "resources/qwen.tiktoken").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    merges = []
    for token, rank in ranks.items():
        parts = [token[at : at + 1] for at in range(len(token))]
        while len(parts) > 2:
            pairs = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
            at = pairs.index(min(pairs))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append((rank, _text(parts[0]), _text(parts[1])))
    return {_text(token): rank for token, rank in ranks.items()}, [(left, right) for _, left, right in sorted(merges)]


@cache
def _letters() -> dict[int, str]:
    """The letters that byte-level tokenizers write bytes as."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + number) for number, byte in enumerate(hidden)}


def _text(token: bytes) -> str:
    return "".join(_letters()[byte] for byte in token)


def _package(name: str) -> Path:
    found = find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"make train-env: {name} is missing")
    return Path(found.origin).parent
