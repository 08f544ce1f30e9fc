"""Makes the environment of the training: `python3 scripts/train_environment.py .venv-train --over .venv [--wheels
DIR]`.

It uses the standard library only. The environment inherits the packages of another one (this project, torch, the test
tools). Packages of constraints-train.txt, or the wheels of a folder, come before them; their dependencies aren't
installed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "constraints-train.txt"


class SetupError(Exception):
    """Says what failed, with the remedy, in one line."""


def requirements() -> list[str]:
    """Returns the requirements, such as `verl==0.9.1`."""
    lines = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return [line.split("#")[0].strip() for line in lines]


def make_venv(venv: Path, over: Path, wheels: Path | None) -> None:
    """Makes the environment and installs the packages. Raises SetupError."""
    outer = over / "bin/python"
    if not outer.exists():
        raise SetupError(
            f"{over} is not an environment. Make it first: make lint, or scripts/environment.py {over} --dev"
        )
    # The other environment's pip installs into it, because some systems have no pip for new environments.
    subprocess.run([str(outer), "-m", "venv", "--clear", "--without-pip", str(venv)], check=True)
    paths = subprocess.run(
        [str(outer), "-c", "import sys; print(*(p for p in sys.path if p.endswith('-packages')), sep='\\n')"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    python = venv / "bin/python"
    where = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    Path(where, "inherited.pth").write_text(f"{ROOT / 'src'}\n{paths}")
    command = [str(outer), "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    chosen = requirements() if wheels is None else ["--no-index", *map(str, sorted(wheels.glob("*.whl")))]
    if subprocess.run([*command, "--no-deps", "--no-compile", *chosen], check=False).returncode:
        raise SetupError("pip could not install the packages of the training. Check the network or the registry")
    script = venv / "bin/cuda-agent"
    # multiprocessing starts processes from this file; they must not run the command again.
    body = "from cuda_agent.cli.main import main\n\nif __name__ == '__main__':\n    main()\n"
    script.write_text(f"#!{venv.resolve() / 'bin/python'}\n{body}")
    script.chmod(0o755)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("venv", type=Path)
    parser.add_argument("--over", type=Path, default=Path(".venv"))
    parser.add_argument("--wheels", type=Path, help="folder of wheels, for a machine without a registry")
    chosen = parser.parse_args()
    try:
        make_venv(chosen.venv, chosen.over, chosen.wheels)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
