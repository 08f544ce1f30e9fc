"""How the compiled baselines are compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: how the compiled forms are compiled: mode of a form -> arguments of `torch.compile`.
COMPILED: Mapping[str, Mapping[str, Any]] = {
    "compile": {},
    "graphs": {"mode": "reduce-overhead"},
    "autotune": {"mode": "max-autotune"},
    "frozen": {"options": {"freezing": True}},
}
