"""The rules for C++ and CUDA, applied to what the preprocessor made of one source."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate, Violation
from cuda_agent.judge.guard.declarations import MOST, check_declarations
from cuda_agent.judge.guard.directives import Macro, macros
from cuda_agent.judge.guard.lexer import TOKEN
from cuda_agent.judge.guard.names import check_names
from cuda_agent.judge.guard.preprocessed import Preprocessed

LAYER = "source"


def check_preprocessed(
    passes: Sequence[Preprocessed], candidate: Candidate, source: str, device: Device
) -> list[Violation]:
    """Returns the broken rules in one source and the candidate's headers that it includes, with files and lines.

    `passes` holds what each pass of the compiler saw (nvcc's host and device passes differ).
    """
    found: dict[tuple[str, str], None] = {}
    for one in passes:
        for rule, offset, what in _findings(one.text, source.endswith(".cu"), device):
            found[rule, f"{one.place(offset)}: {what}"] = None
        for macro, header in _inside_headers(one, candidate.files):
            name = Path(header).name
            what = f"{macro.path}:{macro.line}: macro {macro.name[:80]} is also a name in {name}, included later"
            found["macro_in_header", what] = None
    return [Violation(rule=rule, layer=LAYER, detail=detail) for rule, detail in found]


@lru_cache(maxsize=256)
def _findings(text: str, cuda: bool, device: Device) -> tuple[tuple[str, int, str], ...]:
    """Returns (rule, offset, what) for a text. The result is cached, because an edit of one file leaves the others."""
    found: list[tuple[str, int, str]] = []

    def add(rule: str, offset: int, what: str) -> None:
        if len(found) < MOST:
            found.append((rule, offset, " ".join(what.split())[:160]))

    check_names(text, cuda=cuda, device=device, add=add)
    check_declarations(text, add)
    return tuple(found)


def _inside_headers(one: Preprocessed, files: Mapping[str, str]) -> list[tuple[Macro, str]]:
    """Returns the candidate's macros that a later foreign header would expand, each with that header. Code could hide
    there, since the guard doesn't read the lines of foreign headers."""
    defined = [macro for path, text in files.items() if path.startswith("kernels/") for macro in macros(text, path)]
    paths = {piece.path for piece in one.pieces}
    first = {macro: _piece_of(one, macro) for macro in defined if macro.path in paths}
    last_seen = {path: count for count, path in one.headers}
    found = []
    for header, count in last_seen.items():
        earlier = {macro.name: macro for macro, index in first.items() if index < count}
        found += [(earlier[name], header) for name in _names_in(header, frozenset(earlier))]
    return found


def _piece_of(one: Preprocessed, macro: Macro) -> int:
    """Returns the piece in which the macro is defined. For lines that the preprocessor left out, it is the piece before
    them."""
    begun = [i for i, piece in enumerate(one.pieces) if piece.path == macro.path and piece.line <= macro.line]
    for index in begun:
        if macro.line <= one.pieces[index].line + one.pieces[index].text.count("\n"):
            return index
    return begun[-1] if begun else 0


def _names_in(path: str, names: frozenset[str]) -> list[str]:
    """Returns those of the names that a file uses outside of comments and literals."""
    try:
        text = Path(path).read_text(errors="replace") if names else ""
    except OSError:
        return []
    if not names or re.search(rf"\b(?:{'|'.join(names)})\b", text) is None:
        return []
    return sorted(names & {token["word"] for token in TOKEN.finditer(text) if token["word"]})
