"""Calls without the arguments that say what holds anyway: `nn.Conv2d(3, 64, kernel_size=3)`, not `…, stride=1)`."""

from __future__ import annotations

import ast
import inspect
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional
from torch import nn

_ROOTS: dict[str, Any] = {"nn": nn, "F": torch.nn.functional, "torch": torch}
#: of functions that don't tell their signature.
_KNOWN = {
    "keepdim": False, "approximate": "none", "largest": True, "descending": False, "sorted": True, "stable": False,
    "diagonal": 0, "offset": 0, "beta": 1.0, "threshold": 20.0, "right": False, "reduction": "mean", "stride": None,
    "dilation": 1, "groups": 1, "ceil_mode": False, "count_include_pad": True, "correction": 1,
}  # fmt: skip


def without_defaults(text: str) -> str:
    """The call without those of its last keyword arguments that are the callee's defaults; any other text as it is."""
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.Call) or not tree.keywords:
        return text
    defaults = _defaults(ast.unparse(tree.func)) if _named(tree.func) else _KNOWN
    kept = [item for item in tree.keywords if not _is_default(item, defaults)]
    if len(kept) == len(tree.keywords):
        return text
    callee = ast.get_source_segment(text, tree.func) or ""
    arguments = [ast.get_source_segment(text, item) or "" for item in (*tree.args, *kept)]
    return f"{callee}({', '.join(arguments)})"


def _named(node: ast.expr) -> bool:
    """Whether it is a dotted name of a library, not a method of a tensor."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in _ROOTS


def _is_default(item: ast.keyword, defaults: dict[str, Any]) -> bool:
    if item.arg not in defaults:
        return False
    try:
        said = ast.literal_eval(item.value)
    except ValueError:
        return False
    default = defaults[item.arg]
    return bool(said == default) and isinstance(said, bool) == isinstance(default, bool)


@lru_cache(maxsize=1024)
def _defaults(path: str) -> dict[str, Any]:
    root, *rest = path.split(".")
    found = _ROOTS[root]
    for part in rest:
        found = getattr(found, part, None)
    try:
        parameters = inspect.signature(found).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return _KNOWN
    told = {item.name: item.default for item in parameters if item.default is not inspect.Parameter.empty}
    return told or _KNOWN
