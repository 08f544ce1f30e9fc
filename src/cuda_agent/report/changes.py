"""Differences between candidates."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from cuda_agent.core.records import Candidate


def file_changes(before: Candidate | None, after: Candidate, context: int = 3) -> Iterator[list[str]]:
    """Yields the lines of a unified diff for each file that changed, appeared or was removed."""
    old_files = before.files if before is not None else {}
    for path in sorted({*old_files, *after.files}):
        old, new = old_files.get(path, ""), after.files.get(path, "")
        if old != new:
            names = (path if path in old_files else "/dev/null", path if path in after.files else "/dev/null")
            yield list(difflib.unified_diff(old.splitlines(), new.splitlines(), *names, lineterm="", n=context))
