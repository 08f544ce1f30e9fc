"""Folders that are written whole or not at all, and files that hold one record a line."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from cuda_agent.core.errors import StoreError
from cuda_agent.core.files import write_durably
from cuda_agent.core.record import Record

_Line = TypeVar("_Line", bound=Record)


def write_folder(target: Path, files: Mapping[str, str], remedy: str) -> None:
    """Writes path -> text as a new folder, whole or not at all. Replaces an empty folder.

    Raises StoreError, with `remedy` for the user.
    """
    staging = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
        for path, text in files.items():
            write_durably(staging / path, text)
        staging.chmod(0o755)
        staging.rename(target)
    except OSError as error:
        raise StoreError(f"Can't write {target}: {error.strerror}", remedy) from None
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)


def read_lines(path: Path, record: type[_Line]) -> tuple[_Line, ...]:
    """Returns the record in each line, in order. A last line that a kill cut short is left out.

    Raises StoreError when the file can't be read or a whole line isn't such a record.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"Can't read {path}: {error}", "Restore it from the registry's history") from None
    lines, found = text.splitlines(), []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(record.model_validate_json(line))
        except ValidationError:
            if number < len(lines) or text.endswith("\n"):
                raise StoreError(f"{path}, line {number} is damaged", "Restore it") from None
    return tuple(found)
