"""Makes the virtual environment that the Makefile uses: `python3 scripts/environment.py .venv [--dev]`.

It uses the standard library only, because it runs before anything is installed. Where its Python has a torch within
pyproject's bounds (GPU images usually do), the environment inherits that Python's packages and installs only missing
ones. Otherwise everything comes from the registry at the versions in constraints.txt.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: commands that the Makefile calls.
TOOLS = ("ruff", "mypy", "lint-imports", "pytest")
MINIMUM_PYTHON = (3, 11)


class SetupError(Exception):
    """Says what is missing, with the remedy, in one line."""


def check_machine() -> list[str]:
    """Returns notices on missing optional tools. Raises SetupError where a required one is missing."""
    if sys.version_info < MINIMUM_PYTHON:
        raise SetupError(f"Python {sys.version.split()[0]} is too old. Use 3.11 or later: make PYTHON=python3.11 …")
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise SetupError(f"No C++ compiler ({compiler}). Install g++ (Debian, Ubuntu: apt-get install g++) or set CXX")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        raise SetupError("Python.h is missing. Install Python's headers (Debian, Ubuntu: apt-get install python3-dev)")
    notices = []
    if shutil.which("bwrap") is None:
        notices.append("bwrap is missing: the sandbox will be `reduced` (apt-get install bubblewrap for the full one)")
    has_nvcc = shutil.which("nvcc") or os.path.exists("/usr/local/cuda/bin/nvcc") or os.environ.get("CUDA_HOME")
    if shutil.which("nvidia-smi") and not has_nvcc:
        notices.append("there is a GPU but no nvcc: install NVIDIA's CUDA toolkit or set CUDA_HOME to judge on the GPU")
    return notices


def numbers(version: str) -> tuple[int, ...]:
    """Returns (2, 11, 0) for `2.11.0+cu130`."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def torch_bounds() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the lowest allowed version and the lowest version above the bounds, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    line = next(entry for entry in project["dependencies"] if entry.startswith("torch"))
    low, high = re.findall(r"[\d.]+", line)
    return numbers(low), numbers(high)


def inherits_torch() -> bool:
    """Whether this Python can import a torch within the bounds."""
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return False
    low, high = torch_bounds()
    if not low <= numbers(found) < high:
        print(f"torch {found} of {sys.executable} is outside the bounds; installing another", flush=True)
        return False
    return subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode == 0


def create(venv: Path, inherit: bool) -> None:
    """Makes a fresh environment. With `inherit` it has this Python's packages too, even where that is a venv."""
    done = subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=False)
    if done.returncode != 0:
        raise SetupError("Can't create a virtual environment. Debian, Ubuntu: apt-get install python3-venv")
    if inherit:
        # Python 3.11 seeds an old setuptools, which would hide the inherited one.
        subprocess.run([str(venv / "bin/python"), "-m", "pip", "uninstall", "-qy", "setuptools"], check=False)
        # `--system-site-packages` would add the base Python's packages, not those of a venv that runs this.
        mine = subprocess.run(
            [str(venv / "bin/python"), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        paths = dict.fromkeys((sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]))
        Path(mine, "inherited.pth").write_text("".join(f"{path}\n" for path in paths))


def constraints(venv: Path, inherit: bool) -> Path:
    """Writes the tested versions without those of inherited packages."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    here = {name.lower().replace("_", "-") for d in metadata.distributions() if (name := d.metadata["Name"])}
    kept = [line for line in lines if line and line[0] != "#" and not (inherit and line.split("==")[0] in here)]
    path = venv / "constraints.txt"
    path.write_text("\n".join(kept) + "\n")
    return path


def install(venv: Path, inherit: bool, extra: str) -> None:
    """Installs this package, editable. Where setuptools is inherited, the build isn't isolated and needs no
    registry."""
    command = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--constraint", str(constraints(venv, inherit)), "--editable", f"{ROOT}{extra}"]
    if inherit and any(d.metadata["Name"] == "setuptools" for d in metadata.distributions()):
        command += ["--no-build-isolation"] if numbers(metadata.version("setuptools")) >= (77,) else []
    if subprocess.run(command, check=False).returncode != 0:
        raise SetupError(
            "pip could not install the package. Check the network or the registry; "
            "offline, point PIP_FIND_LINKS at a folder with the wheels it names above"
        )


def add_commands(venv: Path) -> None:
    """Adds the commands of inherited packages that the Makefile calls, for this environment's Python."""
    points = {point.name: point for point in metadata.entry_points(group="console_scripts")}
    for name in TOOLS:
        path, theirs = venv / "bin" / name, Path(sysconfig.get_path("scripts"), name)
        if path.exists():
            continue
        if name in points:
            module, attribute = points[name].value.split(":")
            python = (venv / "bin/python").absolute()
            path.write_text(f"#!{python}\nimport sys\nfrom {module} import {attribute}\nsys.exit({attribute}())\n")
            path.chmod(0o755)
        elif theirs.exists():
            path.symlink_to(theirs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("venv", type=Path)
    parser.add_argument("--dev", action="store_true", help="also what the tests need")
    options = parser.parse_args()
    try:
        for notice in check_machine():
            print(f"notice: {notice}", flush=True)
        inherit = inherits_torch()
        source = f"torch of {sys.executable}" if inherit else "constraints.txt"
        if not (options.venv / "bin/python").exists():
            print(f"Creating {options.venv} ({source}); this takes a minute …", flush=True)
            create(options.venv, inherit)
        install(options.venv, inherit, "[dev]" if options.dev else "")
        if inherit and options.dev:
            add_commands(options.venv)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
