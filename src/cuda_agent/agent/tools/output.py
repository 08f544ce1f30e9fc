"""Shortens long outputs: both ends are shown, and a file of the run directory holds the whole."""

from pathlib import Path

from cuda_agent.core.errors import StoreError

MAX_CHARACTERS = 16_000


def shorten(text: str, logs: Path, name: str, limit: int = MAX_CHARACTERS) -> str:
    """Returns `text`, or its two ends with a pointer to `logs/<name>`, which holds all of it. Raises StoreError."""
    if len(text) <= limit:
        return text
    try:
        (logs / name).write_text(text, errors="replace")
    except OSError as error:
        raise StoreError(f"Can't write {logs / name}: {error.strerror}", "Free some space") from None
    return cut_middle(text, limit, f"; all of it: Read(path='logs/{name}')")


def cut_middle(text: str, limit: int, remedy: str = "") -> str:
    """Returns both ends of a text longer than `limit` characters. `remedy` says how to get the rest."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out{remedy} …]\n{text[-half:]}"


def tail(text: str, characters: int) -> str:
    """Returns the last `characters` of a text, from the start of a line if possible."""
    if len(text) <= characters:
        return text
    cut = text[-characters:]
    newline = cut.find("\n")
    return "[…]\n" + (cut[newline + 1 :] if 0 <= newline < characters // 2 else cut)
