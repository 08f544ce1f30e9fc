"""Tokens of C++ as its own lexer sees them, in one expression; a quote that nothing closes runs to the line's end."""

from __future__ import annotations

import re

#: `raw` and `literal` are what a text says without doing it. Identifiers and numbers are taken whole, so that neither
#: `FOOR"(` nor `1'000` opens a literal.
TOKEN = re.compile(
    r"""(?P<rest>[^\w"'/$.]+)
      |(?P<raw>(?:u8|[uUL])?R"(?P<mark>[^\s()\\]{0,16})\(.*?(?:\)(?P=mark)"|\Z))
      |(?P<word>[^\W\d][\w$]*|\.?[0-9](?:[eEpP][+-]|'[0-9A-Za-z_]|[\w.])*|\$[\w$]*)
      |(?P<literal>"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)
      |(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
      |[/.]""",
    re.DOTALL | re.VERBOSE,
)


def blank(text: str) -> str:
    """The text with everything but its line breaks replaced by spaces."""
    return re.sub(r"[^\n]", " ", text)


def without_literals(text: str) -> str:
    """Comments and literals replaced by spaces; lines and columns stay where they are."""
    hidden = ("raw", "literal", "comment")
    tokens = TOKEN.finditer(text)
    return "".join(blank(token.group()) if token.lastgroup in hidden else token.group() for token in tokens)
