"""The files of a project: filled templates, and files of the run."""

import re
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from cuda_agent.core.assets import filled
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import UsageError
from cuda_agent.core.graph import DRAWS, base_name, spec_text
from cuda_agent.core.records import Evaluation
from cuda_agent.judge import gencode
from cuda_agent.release.export.rewrite import distributions, libraries, with_local_extension
from cuda_agent.release.export.source import Finished
from cuda_agent.release.export.verified import Verified
from cuda_agent.reward import closest_attempt, keep_original
from cuda_agent.workspace.layout import fixed_files

_TEMPLATES = Path(__file__).with_name("templates")
#: kind -> the folders of templates that make it. In a template's path INSIDE, NATIVE and PACKAGE are places and a name.
_PARTS = {
    "package": ("common", "project", "every", "package"),
    "torch-library": ("common", "project", "every", "operator", "package"),
    "hf-kernels": ("common", "every", "operator", "hub"),
}
_VERSION = "0.1.0"


def project_files(finished: Finished, described: Verified, kind: str, package: str) -> dict[str, str]:
    """Returns path -> text. Raises UsageError where the run's sources can't be used in a project."""
    values = _values(finished, described, kind, package)
    native = {name: text for name, text in finished.candidate.files.items() if name.startswith("kernels/")}
    _check_names(native)
    if values["hub"]:
        # Bindings are operators of torch, so that the library doesn't need Python.
        cpp = sorted(name for name in native if name.endswith(".cpp"))
        values["bindings"] = [name for name in cpp if "REGISTER_BINDING" in native[name]]
        values["sources"] = sorted(native.keys() - set(values["bindings"]))
        inside, place = f"torch-ext/{package}", values["native"]
    else:
        inside, place = f"src/{package}", f"src/{package}/native"
        native |= {name: fixed_files()[name] for name in ("binding.cpp", "binding_registry.h")}
    names = {"INSIDE": inside, "NATIVE": place, "PACKAGE": package}
    files = {f"{place}/{name}": text for name, text in native.items()} | {
        f"{inside}/reference.py": finished.task.source,
        f"{inside}/model_new.py": with_local_extension(finished.candidate.files["model_new.py"]),
        f"{inside}/verified.json": described.model_dump_json(indent=1) + "\n",
        "evaluation.json": finished.evaluation.to_json() + "\n",
    }
    for part in _PARTS[kind]:
        files |= filled_folder(part, names, values)
    return files


def filled_folder(part: str, names: dict[str, str], values: dict[str, Any]) -> dict[str, str]:
    """Returns path -> text for a folder of templates. `names` replaces INSIDE, NATIVE and PACKAGE in paths."""
    folder, files = _TEMPLATES / part, {}
    for template in sorted(folder.rglob("*.j2")):
        path = re.sub("[A-Z]{6,}", lambda word: names.get(word[0], word[0]), str(template.relative_to(folder)))
        files[path.removesuffix(".j2")] = filled(template, **values)
    return files


def common_values(package: str, name: str, needs: list[str]) -> dict[str, Any]:
    """Returns the templates' values for a package of the kernels of `name`, which also imports `needs`."""
    # Other characters could break out of Python, TOML, Nix or Markdown text.
    plain = re.sub(r"[^A-Za-z0-9 ._-]", "_", name)
    return {
        "package": package,
        "distribution": package.replace("_", "-").strip("-"),
        "version": _VERSION,
        "summary": f"Verified kernels for {plain}, from cuda-agent",
        "torch_minimum": "2.11",
        "needs": needs,
        "cuda_agent": metadata.version("cuda-agent"),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _values(finished: Finished, described: Verified, kind: str, package: str) -> dict[str, Any]:
    on_gpu = described.device is Device.CUDA
    capability = described.compute_capability
    operator = kind != "package"
    flag = gencode(capability)[0] if on_gpu else ""
    # What the judge compiles for, such as `9.0a` for `9.0`.
    architecture = f"{capability}{'a' if flag.endswith('a') else ''}" if on_gpu and capability else ""
    return common_values(package, finished.task.name, distributions(finished.task.source)) | {
        "kind": kind,
        "hub": kind == "hf-kernels",
        "operator": operator,
        "native": f"{package}_{described.device.value}",
        "device": described.device.value,
        "capability": capability,
        "gencode": flag,
        "architecture": architecture,
        "libraries": repr(libraries(finished.candidate.files) if on_gpu else []),
        "link": libraries(finished.candidate.files) if on_gpu else [],
        "frozen": described.frozen,
        "random": any(base_name(operator) in DRAWS for operator in finished.evaluation.operators),
        "task": finished.task,
        "verified": described,
        "evidence": evidence(finished.evaluation),
        "init": _call_text(described.init),
    }


def evidence(evaluation: Evaluation) -> str:
    """Returns times with their intervals, errors and the stack as Markdown, for an evaluation that passed."""
    assert evaluation.verify is not None
    known = [trial for trial in evaluation.verify.trials if trial.candidate_error is not None]
    return filled(
        Path(__file__).with_name("summary.md.j2"),
        evaluation=evaluation,
        profile=evaluation.profile,
        keep="" if (closest := closest_attempt(evaluation)) is None else keep_original(closest),
        worst=max(known, key=lambda trial: trial.candidate_error or 0.0, default=None),
        stack=evaluation.stack,
    ).removesuffix("\n")


def _call_text(init: dict[str, Any]) -> str:
    """Returns the constructor's arguments as Python text."""
    given = init["dict"]
    positional = [spec_text(item) for item in given["args"]["list"]]
    return ", ".join([*positional, *(f"{name}={spec_text(item)}" for name, item in given["kwargs"]["dict"].items())])


def _check_names(native: dict[str, str]) -> None:
    """Raises UsageError where two sources share a file name: torch's builder names an object file by it."""
    seen: dict[str, str] = {"binding": "binding.cpp"}
    for name in sorted(native):
        path = PurePosixPath(name)
        if path.suffix not in (".cpp", ".cu"):
            continue
        key = path.stem if path.suffix == ".cpp" else f"{path.stem}.cuda"
        if key in seen:
            raise UsageError(f"{name} and {seen[key]} would have the same object file", "Rename one of them")
        seen[key] = name
