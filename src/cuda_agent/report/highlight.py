"""Source code as HTML with token classes. Everything that isn't a token's class is escaped."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from markupsafe import Markup, escape

from cuda_agent.report.plain import plain

#: characters: beyond it a file is shown without colours, so that none takes seconds.
_COLOURED = 200_000
_LEXERS = {".py": "python", ".cu": "cuda", ".cuh": "cuda", ".cpp": "cpp", ".h": "cpp", ".hpp": "cpp", ".diff": "diff"}


@lru_cache(maxsize=512)
def highlighted(text: str, suffix: str) -> Markup:
    """By the file's suffix, such as `.cu`; plain where it is unknown or the text is very long."""
    text = plain(text)
    name = _LEXERS.get(suffix)
    if name is None or len(text) > _COLOURED:
        return escape(text)
    from pygments.lexers import get_lexer_by_name

    lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    # Pygments' own formatter marks every token; a page of hundreds of files wants only those that have a colour.
    parts: list[str] = []
    held, pending = "", ""
    for kind, value in lexer.get_tokens(text):
        colour = _colour(kind)
        if colour == held or (colour and not value.strip()):
            pending += value
            continue
        parts.append(_span(held, pending))
        held, pending = colour, value
    parts.append(_span(held, pending))
    return Markup("".join(parts))


def _span(colour: str, text: str) -> str:
    escaped = str(escape(text))
    return f'<span class="{colour}">{escaped}</span>' if colour and text else escaped


@lru_cache(maxsize=256)
def _colour(kind: Any) -> str:
    """The class in page.css of a token's type or the nearest above it; empty for what stays in the text's colour."""
    from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, String

    table = {
        Comment.Preproc: "cp", Comment.PreprocFile: "s", Comment: "c", Keyword.Type: "kt", Keyword: "k",
        Operator.Word: "k", String: "s", Number: "m", Name.Function: "nf", Name.Class: "nf", Name.Decorator: "nf",
        Name.Builtin.Pseudo: "m", Name.Builtin: "nf", Generic.Inserted: "gi", Generic.Deleted: "gd",
        Generic.Heading: "gh", Generic.Subheading: "gh",
    }  # fmt: skip
    while kind is not None:
        if kind in table:
            return table[kind]
        kind = kind.parent
    return ""
