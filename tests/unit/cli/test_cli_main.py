"""Bad input: one line with cause and remedy, the documented exit code, no traceback. And what the commands print."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent.cli.main import run

GOOD = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"


@pytest.fixture
def task(tmp_path: Path) -> str:
    path = tmp_path / "task.py"
    path.write_text(GOOD)
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["optimize", "none.py"], 2, "No such task file: none.py. Give"),
        (["optimize", "TASK", "--devise", "cpu"], 2, "No such option: --devise"),
        (["optimize", "TASK", "--device", "gpu"], 2, "'gpu' is not one of 'auto', 'cuda', 'cpu'"),
        (["optimize", "TASK", "--precision", "fp8"], 2, "'fp8' is not one of"),
        (["optimize", "TASK", "--turns", "0"], 2, "--turns"),
        (["optimize", "TASK", "--turns", "many"], 2, "--turns"),
        (["optimize", "TASK", "--device", "cpu", "--max-cost", "-1"], 2, "--max-cost: Input should be greater than 0"),
        (["optimize", "TASK", "--device", "cpu", "--max-minutes", "0"], 2, "--max-minutes: Input should be"),
        (["optimize", "TASK", "--max-tokens", "0"], 2, "--max-tokens"),
        (["optimize", "TASK", "--parallel", "0"], 2, "--parallel"),
        (["optimize", "TASK", "--seed-with", "luck"], 2, "'luck' is not"),
        (["resume", "FOLDER"], 2, "is not a run directory"),
        (["show", "none"], 2, "is not a run directory"),
        (["replay", "FOLDER"], 2, "is not a run directory"),
        (["optimize", "TASK", "--device", "cpu", "--timing-budget", "-1"], 2, "--timing-budget: Input should be"),
        (["optimize", "TASK", "--policy", "oracle"], 2, "No policy 'oracle'. Choose one of: playbook"),
        (["optimise", "TASK"], 2, "Did you mean 'optimize'?"),
        (["optimize"], 2, "Missing argument"),
        (["optimize", "FOLDER"], 2, "holds no task files"),
        (["judge", "FOLDER"], 2, "is not a workspace"),
        (["judge", "none"], 2, "is not a workspace"),
        (["init", "none.py", "x"], 2, "No such task file"),
        (["optimize", "TASK", "--out", "TASK"], 2, "is a file"),
        (["optimize", "TASK", "--out", "FULL"], 2, "isn't empty"),
        (["init", "TASK", "FULL"], 2, "isn't empty"),
        (["optimize", "TASK", "--out", "/proc/nowhere/run"], 6, "Can't make"),
    ],
)
def test_one_line_and_its_exit_code(
    arguments: list[str], code: int, says: str, task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    places = {"TASK": task, "FOLDER": str(tmp_path / "folder"), "FULL": str(tmp_path / "full")}
    assert run([places.get(word, word) for word in arguments]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    errors = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert says in errors[0]
    assert "Traceback" not in printed.err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["optimize", "none.py", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_json_is_one_document_in_failure_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["optimize", "none.py", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["error"]["exit_code"] == 2


def test_a_missing_gpu_is_named(task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    from cuda_agent.core.stack import read_stack

    read_stack.cache_clear()
    try:
        assert run(["optimize", task, "--device", "cuda"]) == 4
        assert (
            "No NVIDIA GPU is visible here. Run on a machine with one, or use --device cpu" in capsys.readouterr().err
        )
        assert run(["optimize", task, "--device", "cpu"]) == 4
        assert "No C++ compiler (g++) was found. Install one: apt-get install g++" in capsys.readouterr().err
    finally:
        read_stack.cache_clear()


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("cuda-agent ")
    assert run(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    documented = re.findall(
        r"^- \*\*(\d+) ", (Path(__file__).parents[3] / "docs" / "exit-codes.md").read_text(), re.MULTILINE
    )
    assert len(documented) > 10
    for code in documented:
        assert re.search(rf"[:;] {code} ", said), f"--help leaves out exit code {code}"


def test_init_lays_out_a_workspace(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = tmp_path / "new" / "ws"
    assert run(["init", task, str(where), "--device", "cpu"]) == 0
    assert (where / "model.py").read_text() == GOOD
    assert (where / "SKILL.md").is_file()
    assert run(["judge", str(where)]) == 2
    assert "has no model_new.py yet" in capsys.readouterr().err


def test_an_edited_fixed_file_is_refused(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = tmp_path / "ws"
    assert run(["init", task, str(where), "--device", "cpu"]) == 0
    (where / "model.py").chmod(0o644)
    (where / "model.py").write_text("x = 1\n")
    assert run(["judge", str(where)]) == 2
    assert "model.py" in capsys.readouterr().err


def test_no_command_waits_for_torch_to_say_what_it_is() -> None:
    code = "import sys, cuda_agent.cli.main; print({'torch', 'transformers', 'verl'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == "set()"
