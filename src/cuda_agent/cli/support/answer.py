"""The answer of a command: one JSON document with `--json`, otherwise text and tables."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from rich.console import RenderableType

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import console, emit, say
from cuda_agent.core.errors import EXIT_OK


@dataclass(frozen=True)
class CommandAnswer:
    """`document` is the answer for programs. `shown` is the same for people, on standard output, and `said` are lines
    on standard error. A string is printed as it is; other parts are fitted to the terminal, and go through
    its pager with `paged`."""

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
                    emit(part)
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
