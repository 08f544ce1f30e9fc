"""Exports installed into an environment of their own and run there; the whole command once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from cuda_agent.cli.main import run
from cuda_agent.release.export.export import ExportKind, write_project
from export_runs import RECORDED, frozen, recorded

pytestmark = pytest.mark.integration
INSIDE = Path(__file__).parents[1] / "data" / "export_inside.py"


def _environment(folder: Path) -> Path:
    """A fresh one that sees what is installed beside cuda-agent, but not cuda-agent; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    # A folder that is added by a .pth is no place for further ones, so the editable install of cuda-agent isn't seen.
    (packages / "beside.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin" / "python"


def _run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    names = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, env=names | variables
    )


@pytest.mark.timeout(1800)
def test_packages_and_operators_in_a_fresh_environment(tmp_path: Path) -> None:
    python = _environment(tmp_path / "venv")
    folders = [
        write_project(*recorded(), ExportKind.PACKAGE, "llama_norm", tmp_path / "package"),
        write_project(*recorded(), ExportKind.TORCH_LIBRARY, "llama_norm_ops", tmp_path / "operation"),
        write_project(*frozen(), ExportKind.TORCH_LIBRARY, "llama_norm_frozen", tmp_path / "frozen"),
    ]
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps")
    installed = _run(*pip, "--no-build-isolation", *folders)
    assert installed.returncode == 0, installed.stderr
    cache = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"), "PYTHONDONTWRITEBYTECODE": "1"}
    own = [folder / "tests" for folder in folders]
    options = ("-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, "-c", os.devnull)
    # Away from the conftest.py of these tests, which needs cuda-agent.
    inside = shutil.copy(INSIDE, tmp_path / "test_inside.py")
    done = _run(python, "-m", "pytest", *options, inside, *own, **cache)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert len(list((tmp_path / "extensions").glob("kernels_*/*.so"))) == 1, "one library for the same kernels"
    again = _run(python, "-m", "llama_norm_ops.build", **cache, CXX="/no/compiler")
    assert again.returncode == 0 and "kernels_" in again.stdout, "what is complete is only loaded"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["export", str(RECORDED), "--as", "hf-kernels", "--name", "llama-norm", "--out", str(out), "--json"]
    arguments += ["--anyway"]
    assert run(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    described = json.loads((RECORDED / "verified.json").read_text())
    assert document["directory"] == str(out) and document["as"] == "hf-kernels"
    assert document["verified"] == described, "what the worker says of the task now is what was recorded"
    assert json.loads((out / "torch-ext/llama_norm/verified.json").read_text()) == described
    assert run(arguments) == 2
    assert "isn't empty" in capsys.readouterr().err


@pytest.mark.timeout(1800)
def test_a_project_for_the_hub_is_loaded_by_kernels(tmp_path: Path) -> None:
    pytest.importorskip("kernels")
    from kernels import _rust

    out = write_project(*recorded(), ExportKind.HF_KERNELS, "llama_norm", tmp_path / "llama-norm")
    _rust.Build.open(out)
    built = _run(sys.executable, out / "build_local.py")
    assert built.returncode == 0, built.stderr
    done = _run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, out / "tests")
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout
