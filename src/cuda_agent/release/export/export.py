"""A run's best candidate as a project of its own, which needs nothing of this package."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.files import write_durably
from cuda_agent.core.records import Evaluation
from cuda_agent.release.export.files import project_files
from cuda_agent.release.export.source import Finished, read_finished
from cuda_agent.release.export.verified import Verified, describe_task, verified

_RESERVED = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "kernels", "tests", "setup", "cuda_agent"}


class Kind(StrEnum):
    """Forms of an export."""

    PACKAGE = "package"
    TORCH_LIBRARY = "torch-library"
    HF_KERNELS = "hf-kernels"


@dataclass(frozen=True)
class Exported:
    """A project in its `folder`; `evaluation`: of the candidate that it holds."""

    folder: Path
    verified: Verified
    evaluation: Evaluation


def export(run: Path, kind: Kind, *, name: str | None = None, out: Path | None = None) -> Exported:
    """Write the project into `out` (`exports/NAME` where not given), whole or not at all; the task runs once, in the
    judge's sandbox.

    Raises UsageError, NotPassed, TaskError, DeviceError, SandboxError, StoreError, WorkerError.
    """
    finished = read_finished(run)
    package = package_name(name if name is not None else f"{finished.task.name}_kernels", kind, given=name is not None)
    target = (out if out is not None else Path("exports") / package).absolute()
    check_target(target)
    described = verified(finished, describe_task(finished))
    folder = write_project(finished, described, kind, package, target)
    return Exported(folder, described, finished.evaluation)


def write_project(finished: Finished, described: Verified, kind: Kind, package: str, target: Path) -> Path:
    """The files of the project in a new folder. Raises UsageError, StoreError."""
    files = project_files(finished, described, kind.value, package)
    check_target(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise StoreError(f"Can't make {target}: {error.strerror}", "Choose another --out") from None
    try:
        for path, text in files.items():
            write_durably(staging / path, text)
        staging.chmod(0o755)
        if target.is_dir():
            target.rmdir()
        staging.rename(target)
    except OSError as error:
        raise StoreError(f"Can't write {target}: {error.strerror}", "Choose another --out") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def check_target(target: Path) -> None:
    """Raises UsageError where something is there already."""
    if target.is_dir() and any(target.iterdir()):
        raise UsageError(f"{target} isn't empty", "Choose another --out, or remove it")
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file", "Choose another --out")


def package_name(name: str, kind: Kind, *, given: bool) -> str:
    """A name that Python can import, from a task's name or as the user gave it. Raises UsageError."""
    word = re.sub(r"\W+", "_", name if given else name.lower(), flags=re.ASCII).strip("_")
    if not given and not re.match(r"[a-z]", word):
        word = f"task_{word}"
    plain = r"[a-z][a-z0-9_]*[a-z0-9]" if kind is Kind.HF_KERNELS else r"[A-Za-z_]\w*"
    letters = "small letters" if kind is Kind.HF_KERNELS else "letters"
    wanted = f"{letters}, digits and _, a letter first, and no word of Python's own"
    if not re.fullmatch(plain, word, re.ASCII) or keyword.iskeyword(word) or (given and word != name.replace("-", "_")):
        raise UsageError(f"{name!r} can't be the name of a package", f"Use {wanted}")
    if word in _RESERVED:
        raise UsageError(f"The name {word!r} is taken by another package", "Choose another --name")
    return word
