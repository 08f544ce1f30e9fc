"""A fixed sample of `tests/fuzzing.py messages`: no answer of a worker ends in a traceback."""

from __future__ import annotations

import pytest

from cuda_agent.workers.channel import MAX_VALUES, ProtocolViolation, decode
from fuzzing import run


def test_mutated_messages() -> None:
    assert run("messages", 0, 2000) == []


@pytest.mark.parametrize(
    "raw",
    [
        b"[" + b"9" * 400 + b"]",
        b"[9223372036854775808]",
        b"[1e999]",
        b'["\\ud800"]',
        b'{"\\udc00": 1}',
        b"[" + b"0," * MAX_VALUES + b"0]",
        b"[" * 100_000,
        "[1]".encode("utf-16"),
        b"\xed\xa0\x80",
    ],
)
def test_what_is_beyond_every_bound_is_a_violation(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode(raw)


def test_ends_of_the_bounds_are_read() -> None:
    assert decode(b'[9223372036854775807, -9223372036854775808, 1.7e308, "\\ud83d\\ude00"]')[3] == "\U0001f600"
