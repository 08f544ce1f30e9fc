"""Source code as HTML with a class for each coloured token. All text is escaped."""

from functools import lru_cache
from typing import Any

from markupsafe import Markup, escape

from cuda_agent.core.plain import plain

#: a longer text, in characters, is shown without colours, because colouring it would take seconds.
_COLOURED = 200_000
_LEXERS = {".py": "python", ".cu": "cuda", ".cuh": "cuda", ".cpp": "cpp", ".h": "cpp", ".hpp": "cpp", ".diff": "diff"}


@lru_cache(maxsize=512)
def highlighted(text: str, suffix: str) -> Markup:
    """Returns a text coloured by its file's suffix, such as `.cu`; without colours where the suffix is unknown or the
    text very long."""
    text = plain(text)
    name = _LEXERS.get(suffix)
    if name is None or len(text) > _COLOURED:
        return escape(text)
    from pygments.lexers import get_lexer_by_name

    lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    # Pygments' formatter marks every token. This marks only tokens with a colour, so that large pages stay small.
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
    """Returns the class in page.css for a token's type or its nearest parent; empty for a token without a colour."""
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
