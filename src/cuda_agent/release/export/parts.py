"""Writes a model whose parts were replaced as one project: a package for each part, and the model around them."""

from pathlib import Path

from cuda_agent.core.errors import UsageError
from cuda_agent.core.extraction import Extraction, WholeModel, WholePart
from cuda_agent.core.files import check_unused, write_folder
from cuda_agent.release.export.export import ExportKind, check_faster, package_name
from cuda_agent.release.export.files import common_values, filled_folder, project_files
from cuda_agent.release.export.rewrite import distributions
from cuda_agent.release.export.source import NotPassed, read_finished
from cuda_agent.release.export.verified import describe_task, verified


def export_parts(
    folder: Path, *, name: str | None = None, out: Path | None = None, anyway: bool = False
) -> tuple[Path, WholeModel]:
    """Writes the project of a model that was judged with its parts in place into `out` (by default `exports/NAME`),
    whole or not at all. `folder` holds the extraction. With `anyway` it exports what isn't faster than the
    original, too. Returns the project's folder and the record of the judgement.

    Raises KeepOriginal, UsageError, NotPassed, TaskError, DeviceError, SandboxError, StoreError, WorkerError.
    """
    extraction, record = Extraction.read(folder), _judged(folder)
    check_faster(record.closest_attempt, anyway)
    given = name if name is not None else f"{extraction.name}_parts"
    package = package_name(given, ExportKind.PACKAGE, given=name is not None)
    target = (out if out is not None else Path("exports") / package).absolute()
    check_unused(target)
    parts = {f"part_{n}_{part.task.lower()}": part for n, part in enumerate(record.parts, 1) if part.calls}
    needs = distributions(extraction.source)
    files: dict[str, str] = {f"src/{package}/reference.py": extraction.source}
    for inner, part in parts.items():
        own, needed = _part_files(part, inner)
        needs += [one for one in needed if one not in needs]
        files |= {f"src/{package}/{path}": text for path, text in own.items()}
    values = common_values(package, extraction.name, needs)
    values |= {"parts": parts, "record": record, "device": record.device.value}
    names = {"INSIDE": f"src/{package}", "PACKAGE": package}
    for templates in ("common", "project", "parts"):
        files |= filled_folder(templates, names, values)
    files["whole_model.json"] = record.to_json() + "\n"
    write_folder(target, files, "Choose another --out")
    return target, record


def _judged(folder: Path) -> WholeModel:
    """Raises UsageError, NotPassed, StoreError."""
    if not (folder / WholeModel.file_name).is_file():
        raise UsageError(f"{folder} holds no judged model", f"cuda-agent apply {folder} {folder / 'runs'}")
    record = WholeModel.read(folder)
    if not record.agreed or not any(part.calls for part in record.parts):
        raise NotPassed(f"No part in {folder} runs in a model that agrees with the original", "See whole_model.json")
    return record


def _part_files(part: WholePart, inner: str) -> tuple[dict[str, str], list[str]]:
    """Returns the files of a part's package, and the distributions that it imports. Raises NotPassed, UsageError."""
    finished = read_finished(Path(part.run))
    if (finished.task.key, finished.candidate.digest) != (part.key, part.candidate_digest):
        raise NotPassed(f"{part.run} has changed since the whole model was judged", "Run cuda-agent apply again")
    described = verified(finished, describe_task(finished))
    files = project_files(finished, described, ExportKind.PACKAGE.value, inner)
    inside = {path.removeprefix("src/"): text for path, text in files.items() if path.startswith("src/")}
    return inside | {f"{inner}/evaluation.json": files["evaluation.json"]}, distributions(finished.task.source)
