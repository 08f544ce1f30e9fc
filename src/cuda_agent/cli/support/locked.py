"""The option `--locked [FILE]` of every command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

_OPTION = "--locked"
_FILE = "stack.lock"


def _check(path: Path | None) -> Path | None:
    """Raises LockMismatch, UsageError, StoreError."""
    from cuda_agent.release.lock import check_locked

    if path is not None:
        check_locked(path)
    return path


def _command(
    locked: Annotated[
        Path | None,
        typer.Option(
            _OPTION,
            metavar="[FILE]",
            is_eager=True,
            callback=_check,
            help=f"Refuse to run on another stack than the file says ({_FILE}; see cuda-agent lock).",
        ),
    ] = None,
) -> None:
    """Has the option, for others to take."""


def add_locked(command: Any) -> None:
    """Gives the option to a command, or to all commands of a group."""
    app = typer.Typer(add_completion=False)
    app.command()(_command)
    option: Any = typer.main.get_command(app).params[0]
    option.expose_value = False
    _add(command, option)


def _add(command: Any, option: Any) -> None:
    inner = getattr(command, "commands", None)
    if inner is None:
        command.params.append(option)
        return
    for one in inner.values():
        _add(one, option)


def with_file(arguments: Sequence[str]) -> list[str]:
    """`--locked` without a file gets the usual one: only what ends in `.lock` after it is its file."""
    found: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*found, argument, *rest]
        if argument == _OPTION:
            argument = f"{_OPTION}={rest.pop(0) if rest and rest[0].endswith('.lock') else _FILE}"
        found.append(argument)
    return found
