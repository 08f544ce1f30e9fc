"""Where things are printed: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console, RenderableType
from rich.status import Status
from rich.text import Text

_PLAIN_WIDTH = 160
#: without a terminal, the judge's own steps are printed at most this often.
_QUIET_S = 2.0
_KEPT = ("agent", "final", "doctor")


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
    """progress(phase, text). What the agent and its tools say (a capitalised phase) is kept, line by line; what the
    judge is doing meanwhile moves in one line on a terminal, and is printed now and then elsewhere."""

    def __init__(self, title: str = "") -> None:
        self._console = console(error=True)
        self._title = title
        self._started = time.monotonic()
        self._printed = -_QUIET_S
        self._status: Status | None = None

    def __enter__(self) -> ProgressView:
        if self._console.is_terminal:
            self._status = self._console.status(Text(self._title))
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, phase: str, text: str) -> None:
        kept = phase[:1].isupper() or phase in _KEPT
        if not kept and self._status is None:
            now = time.monotonic()
            if not text or now - self._printed < _QUIET_S:
                return
            self._printed = now
        line = f"{time.monotonic() - self._started:6.1f} s  {phase:<9} {text}"
        if self._status is not None:
            self._status.update(Text(f"{self._title}: {phase} {text}", overflow="ellipsis", no_wrap=True))
            if not kept:
                return
        self._console.print(Text(line, style="dim" if self._status else ""), soft_wrap=True)
