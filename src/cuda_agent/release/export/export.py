"""Writes a run's best candidate as a separate project, which doesn't need this package."""

import keyword
import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cuda_agent.core.errors import KeepOriginal, UsageError
from cuda_agent.core.files import check_unused, write_folder
from cuda_agent.core.records import Evaluation, Ratio
from cuda_agent.release.export.files import project_files
from cuda_agent.release.export.source import Finished, read_finished
from cuda_agent.release.export.verified import Verified, describe_task, verified
from cuda_agent.reward import closest_attempt, keep_original

_RESERVED = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "kernels", "tests", "setup", "cuda_agent"}


class ExportKind(StrEnum):
    """The forms of an export."""

    PACKAGE = "package"
    TORCH_LIBRARY = "torch-library"
    HF_KERNELS = "hf-kernels"


@dataclass(frozen=True)
class Exported:
    """An exported project in `folder`, with the evaluation of its candidate."""

    folder: Path
    verified: Verified
    evaluation: Evaluation


def export(
    run: Path, kind: ExportKind, *, name: str | None = None, out: Path | None = None, anyway: bool = False
) -> Exported:
    """Writes the project into `out` (by default `exports/NAME`), whole or not at all. The task runs once, in the
    judge's sandbox. With `anyway` it exports what isn't faster than the original, too. Raises KeepOriginal, UsageError,
    NotPassed, TaskError, DeviceError, SandboxError, StoreError, WorkerError."""
    finished = read_finished(run)
    check_faster(closest_attempt(finished.evaluation), anyway or finished.promoted)
    package = package_name(name if name is not None else f"{finished.task.name}_kernels", kind, given=name is not None)
    target = (out if out is not None else Path("exports") / package).absolute()
    check_unused(target)
    described = verified(finished, describe_task(finished))
    folder = write_project(finished, described, kind, package, target)
    return Exported(folder, described, finished.evaluation)


def check_faster(closest: Ratio | None, anyway: bool) -> None:
    """Raises KeepOriginal where the original should be kept."""
    if closest is not None and not anyway:
        raise KeepOriginal(keep_original(closest).capitalize(), "--anyway exports it all the same")


def write_project(finished: Finished, described: Verified, kind: ExportKind, package: str, target: Path) -> Path:
    """Writes the files of the project into a new folder and returns it. Raises UsageError, StoreError."""
    files = project_files(finished, described, kind.value, package)
    check_unused(target)
    write_folder(target, files, "Choose another --out")
    return target


def package_name(name: str, kind: ExportKind, *, given: bool) -> str:
    """Returns a name that Python can import, from a task's name or the name that the user gave. Raises UsageError."""
    word = re.sub(r"\W+", "_", name if given else name.lower(), flags=re.ASCII).strip("_")
    if not given and not re.match(r"[a-z]", word):
        word = f"task_{word}"
    plain = r"[a-z][a-z0-9_]*[a-z0-9]" if kind is ExportKind.HF_KERNELS else r"[A-Za-z_]\w*"
    letters = "small letters" if kind is ExportKind.HF_KERNELS else "letters"
    wanted = f"{letters}, digits and _, with a letter first, and no keyword of Python"
    if not re.fullmatch(plain, word, re.ASCII) or keyword.iskeyword(word) or (given and word != name.replace("-", "_")):
        raise UsageError(f"{name!r} can't be the name of a package", f"Use {wanted}")
    if word in _RESERVED:
        raise UsageError(f"The name {word!r} is taken by another package", "Choose another --name")
    return word
