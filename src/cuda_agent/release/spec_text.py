"""Writes the spec of a call (`workers.inside.task.pytree`) as Python text."""

from __future__ import annotations

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
