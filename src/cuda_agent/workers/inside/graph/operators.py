"""The ATen operators that a captured graph keeps whole; `operators.yaml` lists them by kind."""

from __future__ import annotations

from cuda_agent.core.assets import word_lists


def kept() -> frozenset[str]:
    """Returns the names of all kept operators, without overload."""
    return frozenset().union(*word_lists(__file__).values())


def products() -> frozenset[str]:
    """Returns the names of those that multiply matrices or convolve."""
    return word_lists(__file__)["products"]
