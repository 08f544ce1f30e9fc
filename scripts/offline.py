"""Packs what a GPU machine without a registry lacks into a folder that is copied with the sources.

    python3 scripts/offline.py .offline                    # here: wheels for Python 3.12, bubblewrap, a script
    python3 scripts/offline.py .offline --train [--ray]    # also for the training; --ray: for a cluster too
    . .offline/activate                                    # there, in the repository: installs the packages

It uses the standard library only. The machine has Python 3.12, torch and torch's dependencies. Packages to carry are
marked [gpu] in constraints.txt and constraints-train.txt. ray is carried without its unused parts, such as the Java
archives, which are most of its size.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_MIB = 50.0
#: packages of constraints.txt that only the training needs.
TRAINING = (
    "datasets", "dill", "multiprocess", "starlette", "uvicorn", "jsonschema", "jsonschema-specifications",
    "referencing", "rpds-py", "opentelemetry-api",
)  # fmt: skip
#: parts of ray that this package doesn't import, and the daemons of a cluster.
UNUSED = ("ray/jars/", "ray/rllib/", "ray/serve/", "ray/llm/", "ray/dashboard/client/", "ray/cpp/")
DAEMONS = ("ray/core/src/ray/gcs/", "ray/core/src/ray/raylet/", "ray/core/libjemalloc.so")
PLATFORMS = [f"manylinux_2_{number}_x86_64" for number in (17, 24, 26, 27, 28, 31, 34, 35)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64", "any"]
#: every process in the sandbox must find the packages, so they are installed where the interpreter searches by default.
ACTIVATE = """\
# Installs what lies here into the machine's own Python. `. FOLDER/activate` in the repository.
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
pip="python3 -m pip install --quiet --no-index --no-deps --no-compile --root-user-action ignore"
$pip --upgrade "$here"/*.whl && $pip --no-build-isolation -e "$here/.." || echo "error: the wheels can't be installed"
# In an environment of its own, since it wants an older transformers than tasks do.
if [ -d "$here/train" ]; then
    python3 "$here/../scripts/train_environment.py" "$here/../.venv-train" --wheels "$here/train" \\
        --over "$(python3 -c 'import sys; print(sys.prefix)')" &&
        "$here/../.venv-train/bin/python" -c "import verl.workers.engine_workers" ||
        { echo "error: the training lacks a package" && return 1; }
fi
export PATH="$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["scripts"])'):$PATH"
if ! command -v bwrap >/dev/null && [ -e "$here/bwrap" ]; then
    chmod +x "$here/bwrap"
    export CUDA_AGENT_BWRAP="$here/bwrap"
fi
cuda-agent doctor
"""


class SetupError(Exception):
    """Says what failed, with the remedy, in one line."""


def marked(name: str) -> list[str]:
    """Returns the requirements that a list marks to be carried, such as `pydantic==2.14.3`."""
    lines = (ROOT / name).read_text().splitlines()
    return [line.split("#")[0].strip() for line in lines if line.partition("#")[2].strip() == "[gpu]"]


def pinned(names: tuple[str, ...]) -> list[str]:
    """Returns packages with their versions in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line.split("==")[0].lower().replace("_", "-") in names]


def pack(folder: Path, *, train: bool, ray: bool) -> None:
    """Fills the folder. Raises SetupError, also where the folder is too large to be copied."""
    apart = folder / "train"
    for old in folder.rglob("*.whl"):
        old.unlink()
    if apart.is_dir():
        apart.rmdir()
    folder.mkdir(parents=True, exist_ok=True)
    download(folder, marked("constraints.txt"))
    if train:
        apart.mkdir()
        download(apart, marked("constraints-train.txt") + pinned(TRAINING))
        for wheel in apart.glob("ray-*.whl"):
            repack(wheel, UNUSED if ray else UNUSED + DAEMONS)
    binary = shutil.which("bwrap")
    if binary is None:
        raise SetupError("bubblewrap is not installed here and can't travel: apt-get install bubblewrap")
    shutil.copy2(binary, folder / "bwrap")
    (folder / "activate").write_text(ACTIVATE)
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
    print(f"{len(list(folder.rglob('*.whl')))} wheels, {total:.1f} MiB in {folder}")
    if total > LIMIT_MIB:
        raise SetupError(f"More than {LIMIT_MIB:.0f} MiB: with the sources they would not travel")


def download(folder: Path, chosen: list[str]) -> None:
    """Downloads wheels. Raises SetupError."""
    pip = [sys.executable, "-m", "pip"]
    options = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    target = ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", "--dest", str(folder)]
    target += [word for platform in PLATFORMS for word in ("--platform", platform)]
    # It is pure Python and has no wheel in a registry.
    sources = [one for one in chosen if one.startswith("antlr4")]
    commands = [[*pip, "download", *options, *target, *(one for one in chosen if one not in sources)]]
    if sources:
        commands.append([*pip, "wheel", *options, "--wheel-dir", str(folder), *sources])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if re.match("error", line, re.IGNORECASE)]
            raise SetupError(
                f"pip could not get the wheels: {' '.join(lines)[:300]}. Check the network or the registry"
            )


def repack(wheel: Path, without: tuple[str, ...]) -> None:
    """Removes folders from a wheel and from its record of files."""
    temporary = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        for entry in old.infolist():
            if entry.filename.startswith(without):
                continue
            data = old.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):
                kept = [line for line in data.decode().splitlines() if not line.startswith(without)]
                data = ("\n".join(kept) + "\n").encode()
            new.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    shutil.move(temporary, wheel)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", action="store_true", help="also the packages of the training")
    parser.add_argument("--ray", action="store_true", help="also the programs of a cluster, for the launcher ray")
    chosen = parser.parse_args()
    try:
        pack(chosen.folder, train=chosen.train or chosen.ray, ray=chosen.ray)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
