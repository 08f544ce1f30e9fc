"""Shortens names for people, and shows differences between candidates."""

import difflib
import re
from collections.abc import Iterator

from cuda_agent.core.records import Candidate

_LENGTH = re.compile(r"[1-9][0-9]{0,3}")


def symbol(name: str) -> str:
    """Returns the function's name in a mangled C++ symbol, without namespaces and arguments; any other text
    unchanged."""
    rest, found = name.removeprefix("_Z").removeprefix("N"), ""
    if rest == name:
        return name
    while digits := _LENGTH.match(rest):
        end = digits.end() + int(digits[0])
        found, rest = rest[digits.end() : end], rest[end:]
    return found or name


def file_changes(before: Candidate | None, after: Candidate, context: int = 3) -> Iterator[list[str]]:
    """Yields the lines of a unified diff for each file that changed, appeared or was removed."""
    old_files = before.files if before is not None else {}
    for path in sorted({*old_files, *after.files}):
        old, new = old_files.get(path, ""), after.files.get(path, "")
        if old != new:
            names = (path if path in old_files else "/dev/null", path if path in after.files else "/dev/null")
            yield list(difflib.unified_diff(old.splitlines(), new.splitlines(), *names, lineterm="", n=context))
