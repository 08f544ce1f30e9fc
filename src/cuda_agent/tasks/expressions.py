"""The language of seeds: arithmetic over named sizes, and layouts such as `N C H W` or `* 2*D`."""

import ast
import keyword
import re
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

from cuda_agent.core.errors import UsageError

_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Constant, ast.Name, ast.Load,
    ast.Tuple, ast.List, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_AROUND_OPERATOR = re.compile(r"\s*(//|\*\*|[-+*/%])\s*|(?<=\()()\s+|()\s+(?=\))")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_IN_BRACES = re.compile(r"\{(\w+)\}")


@lru_cache(maxsize=4096)
def _compiled(text: str) -> CodeType:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        raise UsageError(f"{text!r} isn't an expression", "Write Python arithmetic over sizes") from None
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            kind = type(node).__name__
            raise UsageError(f"{text!r} has a {kind}", "Only arithmetic, comparisons and tuples can be used")
    return compile(tree, "<seed>", "eval")


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """Returns the value of an expression. Raises UsageError when it isn't arithmetic over `names`."""
    try:
        return eval(_compiled(text), {"__builtins__": {}}, dict(names))
    except (NameError, TypeError, ArithmeticError) as error:
        raise UsageError(f"{text!r} has no value: {error}", "Check the names of the layout") from None


def dimensions(layout: str) -> tuple[bool, tuple[str, ...]]:
    """Returns (whether any number of dimensions comes first, the named dimensions): `* 2 * D` gives (True,
    ("2*D",))."""
    words = layout.strip()
    starred = words == "*" or words.startswith("* ")
    named = _AROUND_OPERATOR.sub(lambda found: found[1] or "", words[1:].strip() if starred else words)
    return starred, tuple(named.split())


def shape(layout: str, names: Mapping[str, Any], leading: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Returns the sizes of a layout; `leading` replaces its `*`. Raises UsageError."""
    starred, named = dimensions(layout)
    return (leading if starred else ()) + tuple(int(evaluate(item, names)) for item in named)


@lru_cache(maxsize=8192)
def names_in(text: str) -> tuple[str, ...]:
    """Returns the names in an expression or a layout in order, each once, without quoted words and constants."""
    found = _WORD.findall(_QUOTED.sub("", text))
    return tuple(dict.fromkeys(word for word in found if not keyword.iskeyword(word)))


def placeholders(template: str) -> tuple[str, ...]:
    """Returns the names in braces in order, each once."""
    return tuple(dict.fromkeys(_IN_BRACES.findall(template)))


def fill(template: str, names: Mapping[str, str]) -> str:
    """Returns the template with every name in braces replaced. Raises UsageError when a name is missing."""
    missing = [name for name in placeholders(template) if name not in names]
    if missing:
        raise UsageError(f"{template!r} uses the unknown name {missing[0]}", "Use a port, a parameter or a dimension")
    return _IN_BRACES.sub(lambda match: names[match[1]], template)
