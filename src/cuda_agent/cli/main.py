"""The command `cuda-agent`: parses, wires, prints, and turns every ending into an exit code."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from cuda_agent.cli import bench, export, extract, machine, optimize, promote, report, show, train, workspace
from cuda_agent.cli.pocket import app as pocket
from cuda_agent.cli.support.errors import report as report_error
from cuda_agent.cli.support.output import emit
from cuda_agent.cli.support.settings import command_group
from cuda_agent.cli.tasks import app as tasks
from cuda_agent.core import bytecode
from cuda_agent.core.errors import EXIT_OK

_LOCKED = "--locked"
_LOCK_FILE = "stack.lock"
_EXIT_CODES = (
    "Exit codes: 0 passed; 2 wrong option or missing file; 3 the task can't be judged; 4 device or compiler missing; "
    "5 no such sandbox; 6 a file can't be read or written; 7 the policy failed; 8 a worker of the judge died; "
    "9 the candidate didn't pass; 10 not covered by the playbook; 11 not the locked stack; "
    "12 a training halted itself; 13 nothing is left to learn from; 14 the playbook's kernel failed; "
    "15 keep the original; 130 interrupted."
)

app = command_group("cuda-agent", "Turn a slow PyTorch module into a verified, faster CUDA extension.", _EXIT_CODES)
for _command in (
    optimize.optimize, optimize.resume, show.show, show.replay, report.report, report.audit, extract.extract,
    extract.apply, export.export, machine.lock, promote.promote, promote.promoted, bench.bench, train.train,
    bench.compare, workspace.init, workspace.judge, workspace.mcp, machine.doctor,
):  # fmt: skip
    app.command(_command.__name__)(_command)
app.add_typer(tasks)
app.add_typer(pocket)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        emit(f"cuda-agent {metadata.version('cuda-agent')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Turn a slow PyTorch module into a verified, faster CUDA extension."""


def _check_lock(path: Path | None) -> Path | None:
    """Raises LockMismatch, UsageError, StoreError."""
    from cuda_agent.release.lock import check_locked

    if path is not None:
        check_locked(path)
    return path


def _with_locked(
    locked: Annotated[
        Path | None,
        typer.Option(
            _LOCKED,
            metavar="[FILE]",
            is_eager=True,
            callback=_check_lock,
            help=f"Refuse to run if the stack isn't that of the file ({_LOCK_FILE}; see cuda-agent lock).",
        ),
    ] = None,
) -> None:
    """Has the option, for others to take."""


def add_locked(command: Any) -> None:
    """Gives the option to a command, or to all commands of a group."""
    donor = typer.Typer(add_completion=False)
    donor.command()(_with_locked)
    option: Any = typer.main.get_command(donor).params[0]
    option.expose_value = False
    waiting = [command]
    while waiting:
        one = waiting.pop()
        inner = getattr(one, "commands", None)
        if inner is None:
            one.params.append(option)
        else:
            waiting += inner.values()


def with_file(arguments: Sequence[str]) -> list[str]:
    """`--locked` without a file gets the usual one: only what ends in `.lock` after it is its file."""
    found: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*found, argument, *rest]
        if argument == _LOCKED:
            argument = f"{_LOCKED}={rest.pop(0) if rest and rest[0].endswith('.lock') else _LOCK_FILE}"
        found.append(argument)
    return found


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code. Prints one line for every failure that isn't our own bug."""
    try:
        command = typer.main.get_command(app)
        add_locked(command)
        code = command.main(args=with_file(arguments), standalone_mode=False)
    except typer.Exit as done:
        return done.exit_code
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the boundary to the user; unknown errors re-raise
        return report_error(error, debug="--debug" in arguments, as_json="--json" in arguments)
    return code if isinstance(code, int) else EXIT_OK


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Entry point of the console script. A signal to terminate ends a run as cleanly as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    bytecode.use()
    sys.exit(run(sys.argv[1:]))
