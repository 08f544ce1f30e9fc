"""The processes that a process started. This file uses the standard library only: `confine.py` imports it without the
package."""

from __future__ import annotations

import contextlib
import os


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - an import of pathlib takes long
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as stream:
                found += map(int, stream.read().split())
    return found


def descendants(pid: int) -> list[int]:
    """Returns all processes below `pid`, without `pid` itself."""
    found, queue = [], _children(pid)
    while queue:
        child = queue.pop()
        found.append(child)
        queue += _children(child)
    return found
