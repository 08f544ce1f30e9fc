"""The compile options of the compiled baselines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The mode of a compiled form -> the arguments of `torch.compile`.
COMPILED: Mapping[str, Mapping[str, Any]] = {
    "compile": {},
    "graphs": {"mode": "reduce-overhead"},
    "autotune": {"mode": "max-autotune"},
    "frozen": {"options": {"freezing": True}},
}
