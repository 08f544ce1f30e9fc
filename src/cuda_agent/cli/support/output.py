"""Prints answers on standard output, as one JSON document or as text; progress and errors on standard error."""

import contextlib
import functools
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

import typer
from pydantic import BaseModel
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from cuda_agent.agent.run import RunStatus
from cuda_agent.core.errors import EXIT_OK
from cuda_agent.core.plain import plain
from cuda_agent.report.tables.trajectory import budget_line, history_line
from cuda_agent.report.units import seconds

JsonArg = Annotated[bool, typer.Option("--json", help="Print only one JSON document on standard output.")]
DebugArg = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

_PLAIN_WIDTH = 160
#: without a terminal, the judge's own steps are printed at most this often.
_QUIET_S = 2.0
_KEPT = ("agent", "model", "resume", "final", "doctor")


def console(*, error: bool = False) -> Console:
    """A console of the stream; wide where no terminal sets the width, so that no line is broken in a log."""
    stream = sys.stderr if error else sys.stdout
    return Console(file=stream, highlight=False, soft_wrap=False, width=None if stream.isatty() else _PLAIN_WIDTH)


def show(*parts: RenderableType) -> None:
    """Print on standard output."""
    out = console()
    for part in parts:
        out.print(part)


def emit(text: str) -> None:
    """A line on standard output, as it is."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(plain(text) + "\n")
    sys.stderr.flush()


class ProgressView:
    """progress(phase, text), and `watch(standing)` after each turn. What the agent and its tools say (a capitalised
    phase) is kept, line by line. On a terminal, lines below show turn, phase, budget, the best so far and the history
    of times; elsewhere a line after each turn does, and what the judge is doing is printed now and then."""

    def __init__(self, title: str = "") -> None:
        self._console = console(error=True)
        self._title = title
        self._started = time.monotonic()
        self._printed = -_QUIET_S
        self._now = ""
        self._standings: dict[int, RunStatus] = {}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._view, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, phase: str, text: str) -> None:
        kept = phase[:1].isupper() or phase in _KEPT
        self._now = plain(f"{phase} {text}")
        if not kept:
            now = time.monotonic()
            if self._live is not None or not text or now - self._printed < _QUIET_S:
                return
            self._printed = now
        self._print(phase, text)

    def watch(self, standing: RunStatus) -> None:
        """How a run stands after a turn."""
        self._standings[standing.agent] = standing
        if self._live is None:
            name = f"[{standing.agent}] " if len(self._standings) > 1 else ""
            self._print("turn", name + "; ".join(_standing_lines(standing)))

    def _print(self, phase: str, text: str) -> None:
        line = plain(f"{time.monotonic() - self._started:6.1f} s  {phase:<9} {text}")
        self._console.print(Text(line, style="dim" if self._live else ""), soft_wrap=True)

    def _view(self) -> RenderableType:
        head = f"{self._title}  {seconds(time.monotonic() - self._started)}  {self._now}"
        lines: list[RenderableType] = [Spinner("dots", Text(head, overflow="ellipsis", no_wrap=True))]
        for number, standing in sorted(self._standings.items()):
            name = f"agent {number}: " if len(self._standings) > 1 else ""
            for index, line in enumerate(_standing_lines(standing)):
                text = f"  {name if index == 0 else ''}{line}"
                lines.append(Text(text, overflow="ellipsis", no_wrap=True, style="cyan" if index else ""))
        return Group(*lines)


def _standing_lines(standing: RunStatus) -> list[str]:
    return [line for line in (budget_line(standing.budget), history_line(standing.times_us)) if line]


@dataclass(frozen=True)
class CommandAnswer:
    """`document` is the answer for programs. `shown` is the same for people, on standard output, and `said` are lines
    on standard error. A string is printed without control characters; other parts are fitted to the terminal,
    and go through its pager with `paged`."""

    document: BaseModel | Mapping[str, Any]
    shown: Iterable[RenderableType] = ()
    said: Iterable[str] = ()
    code: int = EXIT_OK
    paged: bool = False

    def print(self, *, as_json: bool) -> int:
        """Prints the document, or the text, and returns the exit code."""
        if as_json:
            found = self.document
            emit(found.model_dump_json(indent=1) if isinstance(found, BaseModel) else json.dumps(found, indent=1))
            return self.code
        out = console()
        with out.pager(styles=True) if self.paged and out.is_terminal else contextlib.nullcontext():
            for part in self.shown:
                if isinstance(part, str):
                    emit(plain(part))
                else:
                    out.print(part)
        for line in self.said:
            say(line)
        return self.code


def answers(command: Callable[..., CommandAnswer]) -> Callable[..., int]:
    """Gives a command the options `--json` and `--debug`, prints its answer and returns its exit code."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    added = {"as_json": JsonArg, "debug": DebugArg}

    @functools.wraps(command)
    def wrapped(*settings: Any, as_json: bool, debug: bool, **given: Any) -> int:
        return command(*settings, **given).print(as_json=as_json)

    only_by_name = inspect.Parameter.KEYWORD_ONLY
    options = (inspect.Parameter(name, only_by_name, default=False, annotation=a) for name, a in added.items())
    wrapped.__signature__ = inspect.Signature((*own, *options))  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in own} | added
    return wrapped
