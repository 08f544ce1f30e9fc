"""Source code as HTML with token classes. Everything that isn't a token's class is escaped."""

from __future__ import annotations

from functools import lru_cache

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
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    return Markup(highlight(text, lexer, HtmlFormatter(nowrap=True)))
