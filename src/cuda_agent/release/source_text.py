"""Python text: writes numbers and reads imports."""

import ast
import math


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
