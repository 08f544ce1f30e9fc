"""The command `cuda-agent`: parses, wires, prints, and turns every ending into an exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated

import typer

from cuda_agent.cli import bench, export, extract, machine, optimize, promote, report, show, train, workspace
from cuda_agent.cli.pocket import app as pocket
from cuda_agent.cli.support.errors import report as report_error
from cuda_agent.cli.support.locked import add_locked, with_file
from cuda_agent.cli.support.output import emit
from cuda_agent.cli.tasks import app as tasks
from cuda_agent.core import bytecode
from cuda_agent.core.errors import EXIT_OK

_EXIT_CODES = (
    "Exit codes: 0 passed; 2 wrong option or missing file; 3 the task can't be judged; 4 device or compiler missing; "
    "5 no such sandbox; 6 a file can't be read or written; 7 the policy failed; 8 a worker of the judge died; "
    "9 the candidate didn't pass; 10 not covered by the playbook; 11 not the locked stack; "
    "12 a training halted itself; 13 nothing is left to learn from; 130 interrupted."
)

app = typer.Typer(
    name="cuda-agent",
    help="Turns a slow PyTorch module into a verified, faster CUDA extension.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
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
    """Turns a slow PyTorch module into a verified, faster CUDA extension."""


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
