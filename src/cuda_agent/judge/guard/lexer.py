"""C++ tokens in one regular expression, as C++'s own lexer sees them. An open quote runs to the end of its line."""

import re

#: `raw` and `literal` hold text that isn't executed. Identifiers and numbers match as a whole, so that neither `FOOR"(`
#: nor `1'000` opens a literal.
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
    """Replaces everything but line breaks by spaces."""
    return re.sub(r"[^\n]", " ", text)


def without_literals(text: str) -> str:
    """Replaces comments and literals by spaces, so that lines and columns stay where they are."""
    hidden = ("raw", "literal", "comment")
    tokens = TOKEN.finditer(text)
    return "".join(blank(token.group()) if token.lastgroup in hidden else token.group() for token in tokens)
