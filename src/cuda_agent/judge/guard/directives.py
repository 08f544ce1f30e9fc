"""Rules for preprocessor directives as a candidate writes them: which headers it may include, and that its text can't
lie about the file that a line comes from.
"""

import posixpath
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from cuda_agent.core.records import Violation
from cuda_agent.judge.guard.declarations import MOST
from cuda_agent.judge.guard.lexer import TOKEN

_HEADERS_FORBIDDEN = re.compile(
    r"""^(?: (?:dlfcn|unistd|pthread|signal|spawn|threads|link|elf|time)\.h$
      | (?:sys|linux|arpa|netinet|asm)/
      | (?:csignal|thread|future|fstream|filesystem|chrono|ctime|semaphore)$
      | torch/(?:script|nn|jit|optim|serialize|library|csrc/(?:jit|inductor|dynamo|profiler|autograd/engine))
      | ATen/(?:native|core/dispatch|cpu|Parallel|functorch|cuda/(?:CUDABlas|CUDAGraph|CUDAEvent))
      | (?:thrust/|cub/|cutlass|cute/|cufft|cusparse|cusolver|curand|npp|nvjpeg|nvrtc|cutensor|nccl|cupti|nvml)
      | (?:dnnl|oneapi|mkl|cblas|openblas|Eigen|xsimd) )""",
    re.VERBOSE,
)
_THREADS = ("thread", "threads.h", "pthread.h", "future", "semaphore")
_SPLICE = re.compile(r"\\[ \t\f\v]*\r?\n")
_DIRECTIVE = re.compile(r"^[ \t\f\v]*(?:\#|%:)[ \t\f\v]*(?P<name>\w*)(?P<rest>[^\n]*)$", re.MULTILINE)
_KNOWN = {
    "", "include", "define", "undef", "if", "ifdef", "ifndef", "elif", "elifdef", "elifndef", "else", "endif", "pragma",
    "error", "warning",
}  # fmt: skip
#: more are searched for in every header that follows them.
_MOST_MACROS = 500
_NAMES_HEADER = re.compile(r"\s*GCC\s+pch_preprocess\b")
#: a macro body that can't hold code: a number, a word or a string.
_PLAIN_BODY = re.compile(r"\s*(?:\(?\s*-?[\w.]+\s*\)?|\"[^\"]*\")?\s*$")
_DEFINED = re.compile(r"\s*(?P<name>\w+)(?P<parameters>\()?(?P<body>.*)$", re.DOTALL)


@dataclass(frozen=True)
class Macro:
    """A macro with a body that may hold code."""

    path: str
    line: int
    name: str


@dataclass(frozen=True)
class _Text:
    """A file with continued lines joined and comments blanked. Literals stay."""

    joined: str
    code: str
    #: offsets in `joined` at which a line was continued.
    splices: list[int]

    def line(self, offset: int) -> int:
        return self.joined.count("\n", 0, offset) + bisect_right(self.splices, offset) + 1


def check_directives(text: str, path: str) -> list[Violation]:
    """Returns a violation for each forbidden header and for each unusual directive, such as `#line`."""
    found: list[Violation] = []
    read = _read(text)

    def add(rule: str, offset: int, what: str) -> None:
        if len(found) >= MOST:
            return
        detail = f"{path}:{read.line(offset)}: {' '.join(what.split())[:120]}"
        found.append(Violation(rule=rule, layer="source", detail=detail))

    for token in TOKEN.finditer(read.joined):
        if token["raw"] and any(token.start() < splice < token.end() for splice in read.splices):
            add("hidden_text", token.start(), "a raw string with a line continuation in it")
    defined = 0
    for name, rest, offset in _directives(read):
        if name not in _KNOWN:
            add("hidden_text", offset, f"#{name}{rest}: only the usual directives")
        elif name == "define":
            defined += 1
            if defined == _MOST_MACROS:
                add("hidden_text", offset, f"more than {_MOST_MACROS} macros")
        elif name == "include":
            _check_include(rest.strip(), path, offset, add)
        elif name == "pragma" and _NAMES_HEADER.match(rest):
            add("hidden_text", offset, f"#pragma{rest}: only the judge chooses precompiled headers")
    return found


def macros(text: str, path: str) -> list[Macro]:
    """Returns the macros of a file whose bodies may hold code."""
    read, found = _read(text), []
    for name, rest, offset in _directives(read):
        defined = _DEFINED.match(rest) if name == "define" else None
        if defined and not (defined["parameters"] is None and _PLAIN_BODY.match(defined["body"])):
            found.append(Macro(path, read.line(offset), defined["name"]))
    return found


def _check_include(what: str, path: str, offset: int, add: object) -> None:
    assert callable(add)
    if not re.fullmatch(r'<[^>"\n]*>|"[^"\n]*"', what):
        add("computed_include", offset, f"#include {what}")
        return
    name = posixpath.normpath(what[1:-1])
    if name.startswith("/") or _HEADERS_FORBIDDEN.search(name) or not _stays_inside(what, path):
        hint = ": threads of its own may outlive a call; use OpenMP" if name in _THREADS else ""
        add("forbidden_header", offset, f"#include {what}{hint}")


def _stays_inside(what: str, path: str) -> bool:
    """Whether an include that goes up leads to a file of the workspace, so that no other path to a file exists."""
    name = what[1:-1]
    if ".." not in name.split("/"):
        return True
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
    return what[0] == '"' and (reached == "binding_registry.h" or reached.startswith("kernels/"))


def _directives(read: _Text) -> Iterator[tuple[str, str, int]]:
    """Yields (name, rest of the line, offset) of each directive. Directives in raw strings are included, since the
    compiler doesn't lex a skipped branch in the same way."""
    for match in _DIRECTIVE.finditer(read.code):
        yield match["name"], match["rest"], match.start("name")


def _read(text: str) -> _Text:
    parts, splices, position, length = [], [], 0, 0
    for match in _SPLICE.finditer(text):
        parts.append(text[position : match.start()])
        length += match.start() - position
        splices.append(length)
        position = match.end()
    joined = "".join(parts) + text[position:]
    # A comment is one space to the compiler, line breaks and all.
    code = TOKEN.sub(lambda match: " " * len(match.group()) if match["comment"] else match.group(), joined)
    return _Text(joined, code, splices)
