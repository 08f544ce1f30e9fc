"""The commands in `utils/`: each asks the judge at `$CUDA_AGENT_SOCKET`, or starts one for this workspace, and prints
the answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cuda_agent.core.assets import filled
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import EXIT_INTERRUPTED, EXIT_NOT_PASSED, CudaAgentError, UsageError, WorkerError
from cuda_agent.core.inspection import InspectReport
from cuda_agent.core.plain import plain
from cuda_agent.core.records import BuildReport, Evaluation
from cuda_agent.workspace.inspection import say_inspection
from cuda_agent.workspace.layout import Workspace, open_workspace
from cuda_agent.workspace.sockets import connected_socket, end_server

_START_TIMEOUT_S = 60.0


def main(command: str, directory: Path, arguments: list[str]) -> int:
    """Runs `compile`, `verification`, `profiling` or `inspection` for the workspace at `directory`.

    Returns the exit code: 0 only on success.
    """
    try:
        if arguments not in ([], ["--json"]):
            raise UsageError(f"Unknown argument {arguments[0]!r}", "Known: --json")
        answer = _ask(command, directory, quiet=bool(arguments))
        return _show(command, answer, as_json=bool(arguments))
    except CudaAgentError as error:
        _say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted")
        return EXIT_INTERRUPTED


def _ask(command: str, directory: Path, *, quiet: bool) -> dict[str, Any]:
    """Returns the judge's answer, which is its last line. Raises WorkerError when it sends none."""
    for received in _messages(command, directory):
        if "progress" not in received:
            return received
        if not quiet and sys.stderr.isatty():
            phase, text = received["progress"]
            sys.stderr.write(f"\r\x1b[K{phase}: {text}"[:160])
            sys.stderr.flush()
    raise WorkerError("The judge ended without an answer", "Try again; its log is .cuda-agent/judge.log")


def _messages(command: str, directory: Path) -> Iterator[dict[str, Any]]:
    named = os.environ.get("CUDA_AGENT_SOCKET")
    if named:
        client = connected_socket(Path(named))
        if client is None:
            raise WorkerError(f"No judge listens at {named}", "Unset CUDA_AGENT_SOCKET to start one here")
    else:
        client = _own_judge(open_workspace(directory))
    with client, client.makefile("rwb") as stream:
        stream.write(json.dumps({"command": command}).encode() + b"\n")
        stream.flush()
        try:
            for line in stream:
                yield json.loads(line)
        except KeyboardInterrupt:
            if not named:
                end_server(client)
            raise
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")


def _own_judge(workspace: Workspace) -> Any:
    """Returns a connection to this workspace's judge. Starts the judge when none runs. Raises WorkerError."""
    client = connected_socket(workspace.socket)
    if client is not None:
        return client
    log = workspace.socket.with_suffix(".log")
    with log.open("wb") as stream:
        command = [sys.executable, "-m", "cuda_agent.judge", str(workspace.directory)]
        judge = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True, cwd="/"
        )
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        client = connected_socket(workspace.socket)
        if client is not None:
            return client
        if judge.poll() not in (None, 0):
            break
        time.sleep(0.05)
    lines = log.read_text(errors="replace").strip().splitlines()
    raise WorkerError(f"The judge did not start: {lines[-1] if lines else 'no message'}", f"See {log}")


# ---------------------------------------------------------------- what is printed


def _say(text: str) -> None:
    sys.stderr.write(plain(text) + "\n")


def _show(command: str, answer: dict[str, Any], *, as_json: bool) -> int:
    if "error" in answer:
        error = answer["error"]
        _say(f"error: {error['cause']}. {error['remedy']}".rstrip(". ") + ".")
        return int(error["exit_code"])
    if "build" in answer:
        report = BuildReport.model_validate(answer["build"])
        good, text = report.succeeded, _filled("build", build=report)
    elif "inspection" in answer:
        inspected = InspectReport.model_validate(answer["inspection"])
        good, text = inspected.limit is not None, say_inspection(inspected) + "\n"
    else:
        evaluation = Evaluation.model_validate(answer["evaluation"])
        verified = evaluation.verify is not None and evaluation.verify.passed and not evaluation.violations
        good = verified if command == "verification" else evaluation.verdict is Verdict.PASSED
        text = _filled("verification" if command == "verification" else "profiling", evaluation=evaluation, good=good)
    sys.stdout.write(json.dumps(answer) + "\n" if as_json else plain(text))
    return 0 if good else EXIT_NOT_PASSED


def _filled(name: str, **values: Any) -> str:
    return filled(Path(__file__).parent / "texts" / f"{name}.txt.j2", **values)
