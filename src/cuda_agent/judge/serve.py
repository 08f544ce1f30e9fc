"""Serves a judge behind a Unix socket, for the commands inside a workspace (`utils/*`).

Each connection has one request, a line of JSON: {"command": "compile" | "verification" | "profiling" | "inspection" |
"status" | "stop"}. The answer is lines of {"progress": [phase, text]} and at the end one {"build": …}, {"evaluation":
…}, {"inspection": …}, {"status": …} or {"error": …}.
"""

import contextlib
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any, Self

from cuda_agent.core.errors import CudaAgentError, UsageError
from cuda_agent.core.files import write_durably
from cuda_agent.core.records import BuildReport, Evaluation
from cuda_agent.judge.session import JudgeSession
from cuda_agent.workspace.layout import Workspace
from cuda_agent.workspace.sockets import bound_socket

COMMANDS = ("compile", "verification", "profiling", "inspection")
_REQUEST_BYTES = 4096
_REQUEST_TIMEOUT_S = 10.0


class JudgeServer:
    """Answers requests about one workspace at `path` from its own thread, until the `with` block ends."""

    def __init__(self, session: JudgeSession, workspace: Workspace, path: Path) -> None:
        self._session, self._workspace, self.path = session, workspace, path
        self._stop = threading.Event()
        self._busy = False
        self._last_s = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name="judge-server", daemon=True)

    def __enter__(self) -> Self:
        self._socket = bound_socket(self.path)
        self._socket.settimeout(0.5)
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def wait_until_idle(self, idle_s: float) -> None:
        """Returns when no request came for `idle_s` seconds, or when a client asked to stop."""
        while not self._stop.wait(0.5):
            if not self._busy and time.monotonic() - self._last_s > idle_s:
                return

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            with connection:
                self._busy = True
                # A client that has ended is no fault of ours.
                with contextlib.suppress(BrokenPipeError, ConnectionError, TimeoutError):
                    self._answer(connection)
                self._last_s = time.monotonic()
                self._busy = False

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_REQUEST_TIMEOUT_S)
        with connection.makefile("rwb") as stream:
            line = stream.readline(_REQUEST_BYTES)

            def send(message: dict[str, Any]) -> None:
                stream.write(json.dumps(message).encode() + b"\n")
                stream.flush()

            def tell(phase: str, text: str) -> None:
                with contextlib.suppress(OSError, ValueError):
                    send({"progress": [phase, text]})

            try:
                command = str(json.loads(line)["command"])
            except (ValueError, KeyError, TypeError):
                send({"error": {"cause": "That is no request", "remedy": "", "exit_code": 2}})
                return
            try:
                with self._session.telling(tell):
                    answer = self._run(command)
            except CudaAgentError as error:
                answer = {"error": {"cause": error.cause, "remedy": error.remedy, "exit_code": error.exit_code}}
            except Exception as error:
                # This is a bug of ours: the client must hear of it, and the process must end with it.
                send({"error": {"cause": f"The judge failed: {error!r}", "remedy": "Report this", "exit_code": 1}})
                self._stop.set()
                raise
            send(answer)

    def _run(self, command: str) -> dict[str, Any]:
        if command == "status":
            options = self._workspace.options
            return {"status": {"task": self._workspace.task.name, "device": options.device.value}}
        if command == "stop":
            self._stop.set()
            return {"status": {"stopping": True}}
        if command not in COMMANDS:
            raise UsageError(f"Unknown command {command!r}", f"Known: {', '.join(COMMANDS)}, status, stop")
        edited = self._workspace.edited_files()
        if edited:
            raise UsageError(f"Fixed files were edited or are missing: {', '.join(edited)}", "Restore them")
        candidate = self._workspace.snapshot()
        if command == "compile":
            built = self._session.built(candidate)
            if built.library is not None:
                # For the user's own `import cuda_extension`. The judge loads its own copy.
                write_durably(self._workspace.library, built.library.read_bytes())
            return {"build": built.report.model_dump(mode="json")}
        if "model_new.py" not in candidate.files:
            raise UsageError("There is no model_new.py yet", "Write it; SKILL.md shows how")
        if command == "inspection":
            found = self._session.inspect(candidate)
            kind = "build" if isinstance(found, BuildReport) else "inspection"
            return {kind: found.model_dump(mode="json")}
        judged = self._session.verify(candidate) if command == "verification" else self._session.evaluate(candidate)
        return {"evaluation": without_seeds(judged).model_dump(mode="json")}


def without_seeds(evaluation: Evaluation) -> Evaluation:
    """Removes the seeds, which the judge keeps, since the author of a candidate reads the result."""
    verify = evaluation.verify
    if verify is None:
        return evaluation
    trials = tuple(trial.model_copy(update={"seed": None}) for trial in verify.trials)
    return evaluation.model_copy(update={"verify": verify.model_copy(update={"trials": trials})})
