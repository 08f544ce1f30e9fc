"""Folders that are written whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cuda_agent.core.errors import StoreError
from cuda_agent.core.files import write_durably


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
