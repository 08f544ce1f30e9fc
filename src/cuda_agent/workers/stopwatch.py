"""Where the seconds of a step go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Spent(dict[str, float]):
    """Seconds by part of a step; a part that comes again adds up."""

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Counts the block, also where it raises."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self[part] = self.get(part, 0.0) + time.monotonic() - begin
