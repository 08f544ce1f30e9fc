"""A candidate's files after the compiler's preprocessor: macros are expanded, tokens pasted, headers left out.

Line markers (`# 12 "file" 1`) say which file a line comes from: 1 enters a file, 2 returns to it. Entering and
returning alone decide whether a line is the candidate's: it is, unless the file lies in a folder of the compiler's
headers or is one of the workspace's fixed files. `directives` refuses texts that write markers themselves. This module
ignores text inside a raw string that looks like a marker.
"""

import os
import posixpath
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path

from pydantic import TypeAdapter

from cuda_agent.judge.guard.lexer import TOKEN

#: the most characters of the candidate's own text that the guard reads, and bytes of text with all headers.
MOST_TEXT, _MOST_OUTPUT = 1 << 20, 256 << 20
#: files of the workspace that a candidate can't write; "" stands before the first marker.
_FIXED = (".", "binding.cpp", "binding_registry.h")
#: here a path can lead back to the workspace.
_VIRTUAL = ("/proc/", "/dev/", "//")
_MARKER = re.compile(r'^# (?P<line>\d+) "(?P<path>(?:[^"\\\n]|\\.)*)"(?P<flags>(?: \d)*)$', re.MULTILINE)

#: in a `.cudafe1.stub.c`: `__cudaRegisterEntry(__T0, ((void (*)(float *))k<float>), _Z1kIfEvPT_, (-1));`.
_REGISTERED = re.compile(r"__cudaRegisterEntry\([^;]*,\s*(\w+)\s*,[^,;]*\)\s*;")


@dataclass(frozen=True)
class Piece:
    """Consecutive lines of one of the candidate's files, from `line` on."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class Preprocessed:
    """The candidate's own lines of one compiler pass, in the order in which the compiler sees them. `headers` lists the
    other files, each with the number of own pieces before it was entered."""

    pieces: tuple[Piece, ...]
    headers: tuple[tuple[int, str], ...] = ()

    @cached_property
    def text(self) -> str:
        """All pieces. Each begins on a line of its own."""
        return "\n".join(piece.text for piece in self.pieces)

    @cached_property
    def _starts(self) -> list[int]:
        """Offsets of the pieces in `text`."""
        return list(accumulate((len(piece.text) + 1 for piece in self.pieces[:-1]), initial=0))

    def place(self, offset: int) -> str:
        """Returns file and line of an offset in `text`, such as `kernels/a.cu:12`."""
        index = max(0, bisect_right(self._starts, offset) - 1)
        piece = self.pieces[index]
        return f"{piece.path[:200]}:{piece.line + piece.text.count(chr(10), 0, offset - self._starts[index])}"


def own_lines(text: str, foreign: Sequence[Path]) -> Preprocessed:
    """Selects the candidate's lines of a preprocessor's output. The preprocessor ran in the workspace's folder.
    `foreign`: the folders of headers."""
    pieces: list[Piece] = []
    headers: list[tuple[int, str]] = []
    roots = tuple(str(path.resolve()) for path in foreign)
    for path, line, piece, entered in _stretches(text, roots):
        own = _own_path(path, roots)
        if own is None:
            if entered:
                headers.append((len(pieces), path))
        elif piece:
            pieces.append(Piece(own, line, piece))
    return Preprocessed(tuple(pieces), tuple(headers))


def _stretches(text: str, roots: tuple[str, ...]) -> Iterator[tuple[str, int, str, bool]]:
    """Yields (path, first line, text, whether the file is entered here) for the text between two markers."""
    stack: list[str] = [""]
    position, line, entered = 0, 1, False
    while True:
        marker = _next_marker(text, position, own=_own_path(stack[-1], roots) is not None)
        end = marker.start() if marker else len(text)
        yield stack[-1], line, text[position:end], entered
        if marker is None:
            return
        path, flags = _unescaped(marker["path"]), marker["flags"].split()
        if "1" in flags:
            stack.append(path)
        elif "2" in flags:
            stack[1:] = stack[1:-1]
        elif len(stack) == 1:
            # The first markers of an output name the source itself, the built-in macros and the command line.
            stack[-1] = path
        entered = "1" in flags
        line, position = int(marker["line"]), min(marker.end() + 1, len(text))


def _next_marker(text: str, position: int, *, own: bool) -> re.Match[str] | None:
    """Finds the next marker that isn't part of a raw string."""
    while (marker := _MARKER.search(text, position)) is not None:
        if not own:
            return marker
        reached = _inside_literal(text, position, marker.start())
        if reached is None:
            return marker
        position = reached
    return None


def _inside_literal(text: str, position: int, marker: int) -> int | None:
    """Returns the end of a raw string that begins after `position` and reaches over the marker, or None."""
    for token in TOKEN.finditer(text, position):
        if token.start() >= marker:
            return None
        if token["raw"] and token.end() > marker:
            return token.end()
    return None


@lru_cache(maxsize=4096)
def _own_path(path: str, roots: tuple[str, ...]) -> str | None:
    """Returns the workspace path of a candidate's file, None for any other file."""
    normal = posixpath.normpath(path)
    if normal in _FIXED or normal.startswith("<"):
        return None
    if normal.startswith("/") and not normal.startswith(_VIRTUAL) and "\0" not in normal:
        real = os.path.realpath(normal)
        if any(real.startswith(f"{root}/") for root in roots):
            return None
    return normal


def _unescaped(path: str) -> str:
    return re.sub(r"\\(.)", r"\1", path)


@dataclass(frozen=True)
class Compiled:
    """What compiling one source showed: its own lines in each pass of the compiler (nvcc's host and device passes
    differ), and the mangled names of the kernels that it registers."""

    passes: tuple[Preprocessed, ...]
    kernels: tuple[str, ...] = ()

    @classmethod
    def read(cls, outputs: Iterable[Path], stubs: Iterable[Path], foreign: Sequence[Path]) -> "Compiled | None":
        """Reads the preprocessor's outputs and the host stubs that nvcc writes. Returns None for too much text.
        `foreign`: the folders of headers."""
        outputs = tuple(outputs)
        if any(path.stat().st_size > _MOST_OUTPUT for path in outputs):
            return None
        passes = tuple(own_lines(path.read_text(errors="replace"), foreign) for path in outputs)
        if any(len(one.text) > MOST_TEXT for one in passes):
            return None
        found = (_REGISTERED.findall(path.read_text(errors="replace")) for path in stubs)
        return cls(passes, tuple(sorted({name for names in found for name in names})))

    def save(self, path: Path) -> None:
        path.write_bytes(_STORED.dump_json(self))

    @classmethod
    def load(cls, path: Path) -> "Compiled":
        """Reads what `save` stored."""
        return _STORED.validate_json(path.read_bytes())


_STORED = TypeAdapter(Compiled)
