"""The environment of the training: `python3 scripts/train_environment.py venv .venv-train --over .venv`, and its wheels
for a machine without a registry: `python3 scripts/train_environment.py wheels .whl-train [--ray]`.

Standard library only. `venv`: an environment that sees another one's packages (this project, torch, the test tools) and
holds before them what constraints-train.txt names, without dependencies of theirs. `wheels`: those marked [gpu], and
those of constraints.txt that such a machine lacks, for Python 3.12; ray without its Java archives, which are most of
its size, and what else nothing here uses. verl can't be imported without ray, but the embedded launcher begins no
cluster: without --ray its daemons stay behind too.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "constraints-train.txt"
#: of constraints.txt, not on the GPU machine, and not in `.whl`, which travels as well.
ALSO = (
    "datasets", "dill", "multiprocess", "starlette", "uvicorn", "jsonschema", "jsonschema-specifications",
    "referencing", "rpds-py",
)  # fmt: skip
LIMIT_MIB = 50.0
#: parts of ray that nothing here imports, and the daemons of a cluster.
UNUSED = ("ray/jars/", "ray/rllib/", "ray/serve/", "ray/llm/", "ray/dashboard/client/", "ray/cpp/")
DAEMONS = ("ray/core/src/ray/gcs/", "ray/core/src/ray/raylet/", "ray/core/libjemalloc.so")
PLATFORMS = [f"manylinux_2_{number}_x86_64" for number in (17, 24, 26, 27, 28, 31, 34, 35)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64", "any"]


class SetupError(Exception):
    """What failed, with the remedy, in one line."""


def requirements(*, marked: bool) -> list[str]:
    """`verl==0.9.1`, …; with `marked` only those that are carried."""
    lines = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return [line.split("#")[0].strip() for line in lines if not marked or "[gpu]" in line]


def pinned(names: tuple[str, ...]) -> list[str]:
    """These of constraints.txt, with their versions."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line.split("==")[0].lower().replace("_", "-") in names]


def make_venv(venv: Path, over: Path) -> None:
    """Raises SetupError."""
    outer = over / "bin/python"
    if not outer.exists():
        raise SetupError(f"{over} is no environment. Make it first: make lint, or scripts/environment.py {over} --dev")
    subprocess.run([str(outer), "-m", "venv", "--clear", str(venv)], check=True)
    paths = subprocess.run(
        [str(outer), "-c", "import sys; print(*(p for p in sys.path if p.endswith('-packages')), sep='\\n')"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    python = venv / "bin/python"
    subprocess.run([str(python), "-m", "pip", "uninstall", "-qy", "setuptools"], check=False)
    where = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    Path(where, "inherited.pth").write_text(f"{ROOT / 'src'}\n{paths}")
    command = [str(outer), "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*command, "--no-deps", "--no-compile", *requirements(marked=False)], check=False).returncode:
        raise SetupError("pip could not install the packages of the training. Check the network or the registry")
    script = venv / "bin/cuda-agent"
    # Processes that are begun with the file's own name (multiprocessing) must not run the command again.
    body = "from cuda_agent.cli.main import main\n\nif __name__ == '__main__':\n    main()\n"
    script.write_text(f"#!{venv.resolve() / 'bin/python'}\n{body}")
    script.chmod(0o755)


def make_wheels(folder: Path, *, ray: bool) -> None:
    """Raises SetupError, also where they are too large to travel."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip"]
    chosen = requirements(marked=True) + pinned(ALSO)
    sources = [one for one in chosen if one.startswith("antlr4")]
    options = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    target = ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", "--dest", str(folder)]
    target += [word for platform in PLATFORMS for word in ("--platform", platform)]
    done = subprocess.run([*pip, "download", *options, *target, *(o for o in chosen if o not in sources)], check=False)
    built = subprocess.run([*pip, "wheel", *options, "--wheel-dir", str(folder), *sources], check=False)
    if done.returncode or built.returncode:
        raise SetupError("pip could not get the wheels. Check the network or the registry")
    for wheel in folder.glob("ray-*.whl"):
        repack(wheel, UNUSED if ray else UNUSED + DAEMONS)
    total = sum(path.stat().st_size for path in folder.glob("*.whl")) / 2**20
    print(f"{len(list(folder.glob('*.whl')))} wheels, {total:.1f} MiB in {folder}")
    if total > LIMIT_MIB:
        raise SetupError(f"More than {LIMIT_MIB:.0f} MiB: with the sources they would not travel")


def repack(wheel: Path, without: tuple[str, ...]) -> None:
    """The same wheel without these folders, and its record of files without them."""
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    venv = commands.add_parser("venv", help="an environment over another one")
    venv.add_argument("venv", type=Path)
    venv.add_argument("--over", type=Path, default=Path(".venv"))
    wheels = commands.add_parser("wheels", help="a folder of wheels for a machine without a registry")
    wheels.add_argument("folder", type=Path)
    wheels.add_argument("--ray", action="store_true", help="with what begins a cluster, for the launcher ray")
    chosen = parser.parse_args()
    try:
        if chosen.command == "venv":
            make_venv(chosen.venv, chosen.over)
        else:
            make_wheels(chosen.folder, ray=chosen.ray)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
