"""Removes arguments that equal the defaults: `nn.Conv2d(3, 64, kernel_size=3)`, not `…, stride=1)`."""

import ast
import inspect
from functools import lru_cache
from pkgutil import resolve_name
from typing import Any

from cuda_agent.core.assets import tables

#: The modules of the names in tasks.
_ROOTS = {"nn": "torch.nn", "F": "torch.nn.functional", "torch": "torch"}
#: The defaults of functions without a readable signature.
_KNOWN = tables(__file__)


def without_defaults(text: str) -> str:
    """Returns the text without the keyword arguments of calls that equal the callee's defaults."""
    spans = []
    for node in ast.walk(ast.parse(text, mode="eval")):
        if not isinstance(node, ast.Call) or not (node.args or node.keywords):
            continue
        defaults = _defaults(ast.unparse(node.func)) if _named(node.func) else _KNOWN
        parts: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
        dropped = [isinstance(item, ast.keyword) and _is_default(item, defaults) for item in parts]
        for place, item in enumerate(parts):
            if not dropped[place]:
                continue
            start, end = item.col_offset, item.end_col_offset or 0
            if place and not all(dropped[:place]):
                start = parts[place - 1].end_col_offset or 0
            elif place + 1 < len(parts):
                end = parts[place + 1].col_offset
            spans.append((start, end))
    for start, end in sorted(spans, reverse=True):
        text = text[:start] + text[end:]
    return text


def _named(node: ast.expr) -> bool:
    """Returns whether the node is a dotted name of a library, and not a method of a tensor."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in _ROOTS


def _is_default(item: ast.keyword, defaults: dict[str, Any]) -> bool:
    if item.arg not in defaults:
        return False
    try:
        given = ast.literal_eval(item.value)
    except ValueError:
        return False
    default = defaults[item.arg]
    return bool(given == default) and isinstance(given, bool) == isinstance(default, bool)


@lru_cache(maxsize=1024)
def _defaults(path: str) -> dict[str, Any]:
    root, _, rest = path.partition(".")
    try:
        parameters = inspect.signature(resolve_name(f"{_ROOTS[root]}:{rest}")).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return _KNOWN
    told = {item.name: item.default for item in parameters if item.default is not inspect.Parameter.empty}
    return told or _KNOWN
