"""The language of seeds."""

from __future__ import annotations

import pytest

from cuda_agent.core.errors import UsageError
from cuda_agent.tasks.expressions import dimensions, evaluate, fill, placeholders, shape


def test_arithmetic_over_names() -> None:
    assert evaluate("kernel_size // 2", {"kernel_size": 7}) == 3
    assert evaluate("C % groups == 0", {"C": 64, "groups": 8}) is True
    assert evaluate("(1, -1)", {}) == (1, -1)


@pytest.mark.parametrize(
    "text", ["__import__('os')", "x.__class__", "[n for n in (1, 2)]", "lambda: 1", "C +", "unknown", "C // 0"]
)
def test_nothing_but_arithmetic(text: str) -> None:
    with pytest.raises(UsageError):
        evaluate(text, {"C": 1, "x": 1})


def test_layouts() -> None:
    assert dimensions("*") == (True, ())
    assert dimensions("* 2 * D") == (True, ("2*D",))
    assert dimensions("N 4*C L") == (False, ("N", "4*C", "L"))
    assert shape("* 2*D", {"D": 8}, (3, 5)) == (3, 5, 16)
    assert shape("N (D+1)", {"N": 2, "D": 8}) == (2, 9)


def test_templates() -> None:
    assert placeholders("{layer}({x}, dim={dim})") == ("layer", "x", "dim")
    assert fill("F.pad({x}, ({p}, {p}))", {"x": "x", "p": "2"}) == "F.pad(x, (2, 2))"
    with pytest.raises(UsageError):
        fill("{x}", {})
