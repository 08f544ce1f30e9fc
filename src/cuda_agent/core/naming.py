"""Names that differ from each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable


def unused(name: str, is_used: Callable[[str], bool], joint: str = "-") -> str:
    """Returns the name, with a number from 2 on where it is used."""
    numbered = (f"{name}{joint}{number}" for number in itertools.count(2))
    return next(one for one in itertools.chain((name,), numbered) if not is_used(one))
