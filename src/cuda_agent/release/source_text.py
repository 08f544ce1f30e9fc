"""Python text: writes the spec of a call (`workers.inside.task.pytree`) and floats, and reads imports."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any


def spec_text(
    spec: dict[str, Any], name: str = "", parameter: Callable[[int, str], str] = lambda index, name: name
) -> str:
    """Returns the text of a spec. `parameter` names tensor `index`, which stands at `name` in the call."""
    if "t" in spec:
        return parameter(spec["t"], name)
    if "v" in spec:
        return repr(spec["v"])
    if "f" in spec:
        return f"float({spec['f']!r})"
    if "dtype" in spec:
        return f"torch.{spec['dtype']}"
    if "dict" in spec:
        return f"{{{', '.join(f'{key!r}: {spec_text(item, key, parameter)}' for key, item in spec['dict'].items())}}}"
    inner = spec["list"] if "list" in spec else spec["tuple"]
    items = [spec_text(item, f"{name}_{index}", parameter) for index, item in enumerate(inner)]
    text = ", ".join(items)
    return f"[{text}]" if "list" in spec else f"({text}{',' if len(items) == 1 else ''})"


def number_text(value: complex) -> str:
    """Returns text whose value is this number; infinities and NaN have no literal."""
    special = isinstance(value, float) and not math.isfinite(value)
    return f"float({str(value)!r})" if special else repr(value)


def imported_tops(source: str) -> set[str]:
    """Returns the first parts of the names of all modules that a source imports absolutely."""
    tops: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            tops |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            tops.add(node.module.partition(".")[0])
    return tops
