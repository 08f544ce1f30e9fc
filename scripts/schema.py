"""Writes docs/schema.md, the fields of every record that leaves the program, from their models.

.venv/bin/python scripts/schema.py            # writes the page
.venv/bin/python scripts/schema.py --check    # fails where the page is not current
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from cuda_agent.core.bench import BenchResult
from cuda_agent.core.record import SCHEMA_VERSION, StoredRecord
from cuda_agent.core.records import Evaluation, Task, Trajectory
from cuda_agent.tasks.dataset.export import COLUMNS
from cuda_agent.tasks.records import DatasetTask

PAGE = Path(__file__).resolve().parent.parent / "docs" / "schema.md"
RECORDS: tuple[type[StoredRecord], ...] = (Task, Evaluation, Trajectory, BenchResult, DatasetTask)
INTRODUCTION = f"""# Records

`scripts/schema.py` generates this page from the models. All records are JSON of schema version {SCHEMA_VERSION}, which
each file states as `schema_version`. A reader refuses another version. `?` marks a field that may be null, `[]` several
values, `{{}}` a mapping from names.
"""
#: end of a field's name -> unit.
UNITS = {"_us": "µs", "_ms": "ms", "_s": "s", "_mib": "MiB", "_bytes": "bytes", "_w": "W", "_mhz": "MHz"}


def records_in(kind: Any) -> Iterator[type[BaseModel]]:
    """Yields the records in an annotation."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for inner in typing.get_args(kind):
        yield from records_in(inner)


def nested(record: type[BaseModel], seen: list[type[BaseModel]]) -> list[type[BaseModel]]:
    """Returns `seen` with a record and the records in its fields."""
    if record not in seen:
        seen.append(record)
        for field in record.model_fields.values():
            for inner in records_in(field.annotation):
                nested(inner, seen)
    return seen


def type_name(kind: Any) -> str:
    """Returns a short name of an annotation."""
    arguments = [one for one in typing.get_args(kind) if one is not Ellipsis]
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return "/".join(type_name(one) for one in arguments if one is not types.NoneType) + "?"
    if origin is typing.Literal:
        return "/".join(f"`{one}`" for one in arguments)
    if origin is tuple:
        return f"{type_name(arguments[0])}[]"
    if origin is dict:
        return f"{type_name(arguments[1])}{{}}"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "/".join(f"`{one.value}`" for one in kind) if len(kind) < 5 else "str"
    return "any" if kind is Any else str(kind.__name__)


def line(name: str, kind: str, meaning: str) -> str:
    """Returns a field's line. The unit follows from the field's name."""
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
    return wrapped(f"`{name}` ({kind}{f', {unit}' if unit else ''}): {meaning}")


def wrapped(text: str) -> str:
    """Returns a paragraph with lines of at most 120 characters."""
    return "\n".join(textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False))


def meanings(record: type[BaseModel]) -> dict[str, str]:
    """Returns the texts below the fields of a record and of its bases."""
    found = {}
    for kind in reversed(record.__mro__[: record.__mro__.index(BaseModel)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in itertools.pairwise(tree.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    found[name] = " ".join(said.split())
    return found


def section(record: type[BaseModel]) -> str:
    """Returns a record's section. Raises ValueError where a field has no meaning."""
    about = " ".join((record.__doc__ or "").split())
    if file := getattr(record, "file_name", ""):
        about += f" File: `{file}`."
    lines, said = [], meanings(record)
    for name, field in record.model_fields.items():
        if name == "schema_version":
            continue
        if not said.get(name):
            raise ValueError(f"{record.__name__}.{name} has no docstring")
        lines.append(line(name, type_name(field.annotation), said[name]))
    return f"## {record.__name__}\n\n{wrapped(about)}\n\n" + broken(lines)


def broken(lines: list[str]) -> str:
    """Joins lines with Markdown's hard line breaks."""
    return "\\\n".join(lines)


def page() -> str:
    """Returns the whole page."""
    records: list[type[BaseModel]] = []
    for record in RECORDS:
        nested(record, records)
    columns = [line(name, kind, meaning) for name, (kind, meaning) in COLUMNS.items()]
    rows = "## Dataset row\n\nA row of a data set's parquet files.\n\n" + broken(columns)
    return "\n\n".join([INTRODUCTION.strip(), *map(section, records), rows]) + "\n"


def main() -> int:
    if "--check" in sys.argv[1:]:
        current = PAGE.exists() and PAGE.read_text() == page()
        if not current:
            print(f"{PAGE.name} is not current: run scripts/schema.py", file=sys.stderr)
        return 0 if current else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
