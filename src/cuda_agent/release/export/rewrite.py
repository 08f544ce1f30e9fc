"""Reads the syntax of sources for an export, and rewrites their imports of the extension."""

import ast
import re
from collections.abc import Mapping
from typing import Any

from cuda_agent.core.errors import UsageError
from cuda_agent.release.source_text import imported_tops

EXTENSION = "cuda_extension"
_LIBRARIES = (("cublasLt", "cublasLt.h"), ("cublas", "cublas_v2.h"), ("cudnn", "cudnn"))
#: module -> distribution, for modules besides torch that an exported task may import.
_KNOWN = {"transformers": "transformers", "numpy": "numpy", "einops": "einops", "torchvision": "torchvision"}


def with_local_extension(text: str) -> str:
    """Rewrites `import cuda_extension` in `model_new.py` as an import from its own package. All else stays unchanged.
    Raises UsageError where the import shares its line with other code."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == EXTENSION for alias in node.names):
            statements = []
            for alias in node.names:
                as_name = f" as {alias.asname}" if alias.asname else ""
                own = alias.name == EXTENSION
                statements.append(f"{'from . import' if own else 'import'} {alias.name}{as_name}")
            _replace(lines, node, statements)
        elif isinstance(node, ast.ImportFrom) and node.module == EXTENSION and node.level == 0:
            names = ", ".join(a.name + (f" as {a.asname}" if a.asname else "") for a in node.names)
            _replace(lines, node, [f"from .{EXTENSION} import {names}"])
    return "\n".join(line for line in lines if line is not _GONE) + "\n"


_GONE = "\0gone"


def _replace(lines: list[str], node: ast.Import | ast.ImportFrom, statements: list[str]) -> None:
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    if before.strip() or (after.strip() and not after.strip().startswith("#")):
        raise UsageError(
            f"model_new.py, line {node.lineno}: an import beside other code", "Put it on a line of its own"
        )
    lines[first] = "\n".join(before + statement for statement in statements) + after
    for index in range(first + 1, last + 1):
        lines[index] = _GONE


def wrapped_call(source: str) -> dict[str, Any] | None:
    """Reads how `Model.forward` calls its only submodule; None where it does more than
    `return self.NAME(arguments and constants)`.

    Returns {"child": NAME, "args": [part], "kwargs": {name: part}}. A part is {"p": index of an argument of forward} or
    {"v": constant}.
    """
    model = next((n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    found = [n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward"] if model else []
    if len(found) != 1 or found[0].decorator_list or found[0].args.vararg or found[0].args.kwarg:
        return None
    body = [item for item in found[0].body if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))]
    value = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return None
    owner = value.func.value
    arguments = [argument.arg for argument in (*found[0].args.posonlyargs, *found[0].args.args)]
    if not isinstance(owner, ast.Name) or not arguments or owner.id != arguments[0]:
        return None
    positions = {name: index for index, name in enumerate(arguments[1:])}
    positional = [_part(item, positions) for item in value.args]
    keywords = {str(item.arg): _part(item.value, positions) for item in value.keywords if item.arg}
    parts = [*positional, *keywords.values()]
    if len(keywords) != len(value.keywords) or any(part is None for part in parts):
        return None
    if sorted(part["p"] for part in parts if part and "p" in part) != list(range(len(positions))):
        return None
    return {"child": value.func.attr, "args": positional, "kwargs": keywords}


def _part(node: ast.expr, positions: Mapping[str, int]) -> dict[str, Any] | None:
    if isinstance(node, ast.Name) and node.id in positions:
        return {"p": positions[node.id]}
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool | int | float | str)):
        return {"v": node.value}
    return None


def libraries(files: Mapping[str, str]) -> list[str]:
    """Returns the CUDA libraries that the kernels link against, besides the runtime."""
    text = "\n".join(text for name, text in files.items() if name.startswith("kernels/"))
    includes = re.findall(r'#\s*include\s*[<"]([^>"]+)[>"]', text)
    return [name for name, header in _LIBRARIES if any(item.startswith(header) for item in includes)]


def distributions(source: str) -> list[str]:
    """Returns the distributions besides torch that the reference imports."""
    return sorted(_KNOWN[name] for name in imported_tops(source) if name in _KNOWN)
