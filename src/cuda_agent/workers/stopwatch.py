"""Measures the parts of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch(dict[str, float]):
    """Holds the seconds of each part of a step. A repeated part adds up."""

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Adds the seconds of a block, also where it raises."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self[part] = self.get(part, 0.0) + time.monotonic() - begin
