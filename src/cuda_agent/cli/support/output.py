"""Where things are printed: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from cuda_agent.agent.run import RunStatus
from cuda_agent.report.plain import plain
from cuda_agent.report.tables.trajectory import budget_line, history_line
from cuda_agent.report.units import seconds

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
    """A line on standard error, as it is."""
    sys.stderr.write(text + "\n")
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

    def __enter__(self) -> ProgressView:
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._view, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
