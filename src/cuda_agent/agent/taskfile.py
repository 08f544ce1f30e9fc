"""Reads a task file in the KernelBench convention. Checks only the syntax; the judge runs the file in its sandbox."""

import ast
import symtable
from pathlib import Path

from cuda_agent.core.errors import TaskError, UsageError
from cuda_agent.core.records import Task

REQUIRED = ("Model", "get_inputs", "get_init_inputs")
_MAX_BYTES = 4 << 20


def load_task(path: str | Path) -> Task:
    """Reads a task file. Raises UsageError when the file is missing or unreadable, TaskError when it doesn't parse or
    lacks `Model`, `get_inputs` or `get_init_inputs`."""
    path = Path(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"No such task file: {path}", "Give the path of a Python file with class Model") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder, not a task file", "Give one of its .py files") from None
    except OSError as error:
        raise UsageError(f"Can't read {path}: {error.strerror}", "Check its permissions") from None
    if len(raw) > _MAX_BYTES:
        raise TaskError(f"{path} is larger than {_MAX_BYTES >> 20} MiB", "Create weights in Model, not in the source")
    try:
        source = raw.decode()
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8 text (byte {error.start})", "Save it as UTF-8") from None
    check_source(source, str(path))
    return Task(name=path.stem, source=source)


def check_source(source: str, where: str) -> None:
    """Raises TaskError if `source` isn't Python or doesn't define the three names of the convention."""
    try:
        tree = ast.parse(source)
        symbols = symtable.symtable(source, where, "exec").get_symbols()
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = f"{where}, line {line}" if line else where
        reason = getattr(error, "msg", None) or str(error)
        raise TaskError(f"{place}: syntax error: {reason}", "Correct the file") from None
    names = {one.get_name() for one in symbols if one.is_assigned() or one.is_imported() or one.is_namespace()}
    missing = [name for name in REQUIRED if name not in names]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    if missing and not any(alias.name == "*" for node in imports for alias in node.names):
        kinds = {"Model": "class Model(torch.nn.Module)", "get_inputs": "get_inputs()"}
        wanted = ", ".join(kinds.get(name, f"{name}()") for name in missing)
        raise TaskError(f"{where} doesn't define {', '.join(missing)}", f"Add {wanted} (KernelBench convention)")
