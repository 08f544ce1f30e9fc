"""The files of a project: filled templates, and files of the run."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import jinja2

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import UsageError
from cuda_agent.judge import gencode
from cuda_agent.release.export.rewrite import distributions, libraries, with_local_extension
from cuda_agent.release.export.source import Finished
from cuda_agent.release.export.summary import evidence
from cuda_agent.release.export.verified import Verified
from cuda_agent.release.source_text import spec_text
from cuda_agent.workspace.layout import fixed_files

_TEMPLATES = Path(__file__).with_name("templates")
_COMMON = ("verified.py", "kernels.py", "module.py", "patching.py", "__init__.py")
_VERSION = "0.1.0"


def project_files(finished: Finished, described: Verified, kind: str, package: str) -> dict[str, str]:
    """Returns path -> text. Raises UsageError where the run's sources can't be used in a project."""
    values = _values(finished, described, kind, package)
    hub = kind == "hf-kernels"
    inside = f"torch-ext/{package}" if hub else f"src/{package}"
    files = {f"{inside}/{name}": rendered(f"package/{name}", values) for name in _COMMON}
    if values["operator"]:
        files[f"{inside}/custom_op.py"] = rendered("operator/custom_op.py", values)
    files |= {
        f"{inside}/reference.py": finished.task.source,
        f"{inside}/model_new.py": with_local_extension(finished.candidate.files["model_new.py"]),
        f"{inside}/verified.json": described.model_dump_json(indent=1) + "\n",
        "evaluation.json": finished.evaluation.to_json() + "\n",
        "LICENSE": rendered("package/LICENSE", values),
        "README.md": rendered("package/README.md", values),
        f"tests/test_{package}.py": rendered("package/test_package.py", values),
    }
    native = {name: text for name, text in finished.candidate.files.items() if name.startswith("kernels/")}
    _check_names(native)
    if hub:
        return files | _hub_files(native, package, inside, values)
    fixed = {name: fixed_files()[name] for name in ("binding.cpp", "binding_registry.h")}
    files |= {f"{inside}/native/{name}": text for name, text in (fixed | native).items()}
    for name in ("cuda_extension.py", "build.py"):
        files[f"{inside}/{name}"] = rendered(f"package/{name}", values)
    return files | {"pyproject.toml": rendered("package/pyproject.toml", values)}


def _hub_files(native: dict[str, str], package: str, inside: str, values: dict[str, Any]) -> dict[str, str]:
    """Returns the files for kernel-builder. Bindings are operators of torch, so that the library doesn't need
    Python."""
    bindings = sorted(name for name, text in native.items() if name.endswith(".cpp") and "REGISTER_BINDING" in text)
    sources = sorted(name for name in native if name not in bindings)
    values = values | {"bindings": bindings, "sources": sources}
    folder = values["native"]
    files = {f"{folder}/{name}": text for name, text in native.items()}
    files |= {
        f"{folder}/binding_registry.h": rendered("hub/binding_registry.h", values),
        f"{folder}/shim/pybind11/pybind11.h": rendered("hub/pybind11.h", values),
        "torch-ext/torch_binding.cpp": rendered("hub/torch_binding.cpp", values),
        f"{inside}/cuda_extension.py": rendered("hub/cuda_extension.py", values),
        "build.toml": rendered("hub/build.toml", values),
        "flake.nix": rendered("hub/flake.nix", values),
        "build_local.py": rendered("hub/build_local.py", values),
    }
    for header in ("pybind11/stl.h", "torch/extension.h", "torch/csrc/utils/pybind.h"):
        depth = "../" * header.count("/")
        files[f"{folder}/shim/{header}"] = f'#pragma once\n#include "{depth}pybind11/pybind11.h"\n'
    return files


def _values(finished: Finished, described: Verified, kind: str, package: str) -> dict[str, Any]:
    on_gpu = described.device is Device.CUDA
    capability = described.compute_capability
    operator = kind != "package"
    return common_values(package, finished.task.name, distributions(finished.task.source)) | {
        "kind": kind,
        "hub": kind == "hf-kernels",
        "operator": operator,
        "native": f"{package}_{described.device.value}",
        "device": described.device.value,
        "capability": capability,
        "gencode": gencode(capability)[0] if on_gpu else "",
        "architecture": _architecture(capability) if on_gpu and capability else "",
        "libraries": repr(libraries(finished.candidate.files) if on_gpu else []),
        "link": libraries(finished.candidate.files) if on_gpu else [],
        "frozen": described.frozen,
        "task": finished.task,
        "verified": described,
        "evidence": evidence(finished.evaluation),
        "init": _call_text(described.init),
    }


def common_values(package: str, name: str, needs: list[str]) -> dict[str, Any]:
    """Returns the templates' values for a package of the kernels of `name`, which also imports `needs`."""
    return {
        "package": package,
        "distribution": package.replace("_", "-").strip("-"),
        "version": _VERSION,
        "summary": f"Verified kernels for {_plain(name)}, from cuda-agent",
        "torch_minimum": "2.11",
        "needs": needs,
        "cuda_agent": metadata.version("cuda-agent"),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _plain(name: str) -> str:
    """Returns a task's name without characters that could break out of Python, TOML, Nix or Markdown text."""
    return re.sub(r"[^A-Za-z0-9 ._-]", "_", name)


def _call_text(init: dict[str, Any]) -> str:
    """Returns the constructor's arguments as Python text."""
    given = init["dict"]
    positional = [spec_text(item) for item in given["args"]["list"]]
    return ", ".join([*positional, *(f"{name}={spec_text(item)}" for name, item in given["kwargs"]["dict"].items())])


def _architecture(capability: str) -> str:
    """Returns the architecture that the judge compiles for, such as `9.0a` for `9.0`."""
    flag = gencode(capability)[0]
    return capability + ("a" if flag.endswith("a") else "")


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


def rendered(template: str, values: dict[str, Any]) -> str:
    """Fills a template. Raises jinja2.UndefinedError where a value is missing."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    return environment.get_template(f"{template}.j2").render(**values)
