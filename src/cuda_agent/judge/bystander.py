"""Processor time that a candidate takes while others are timed: a busy neighbour makes the baselines slow."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from cuda_agent.workspace.process import descendants

#: share of one core, over all bursts of others, above which it isn't idle.
SHARE = 0.1
LEAST_SECONDS = 0.02


class Bystander:
    """The candidate's processes, looked at around the bursts of others. `pid`: the worker's, as the judge sees it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._took_ns = self._passed_ns = 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While the candidate has nothing to do."""
        before, begin = self._processor_ns(), time.perf_counter_ns()
        try:
            yield
        finally:
            self._took_ns += max(0, self._processor_ns() - before)
            self._passed_ns += time.perf_counter_ns() - begin

    def verdict(self) -> str | None:
        """What it did, None when it was idle or the system doesn't say."""
        if self._took_ns < LEAST_SECONDS * 1e9 or self._took_ns < SHARE * self._passed_ns:
            return None
        return (
            f"the candidate's processes took {self._took_ns / 1e6:.0f} ms of processor time "
            f"in the {self._passed_ns / 1e6:.0f} ms in which others were timed"
        )

    def _processor_ns(self) -> int:
        """Of all threads of all its processes that are there now."""
        total = 0
        for pid in (self._pid, *descendants(self._pid)):
            with contextlib.suppress(OSError, ValueError, IndexError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    with contextlib.suppress(OSError, ValueError, IndexError):
                        total += int((thread / "schedstat").read_text().split()[0])
        return total
