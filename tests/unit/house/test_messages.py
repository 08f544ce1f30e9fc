"""No code recognises our own messages by their text: a fact is a type or a field from where it arises.

The output of a compiler, of torch or of another library may be read where it arises, if it has no typed form. Such a
line says so in a comment: `# foreign text: <whose>`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import pytest
from sources import Module, functions, modules, report

#: names of variables and fields that hold a message. `str(error)` counts too, and a name that is assigned one of them.
MESSAGES = {
    "cause", "detail", "err", "error", "exc", "failure", "fault", "log", "message", "msg", "note", "observation",
    "problem", "reason", "refusal", "remedy", "said", "stderr", "why",
}  # fmt: skip
#: what holds words for a policy in its field `text`.
OBSERVATIONS = {"answer", "observation", "result"}
SEARCHES = {
    "count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix", "rfind", "rpartition", "split",
    "startswith",
}  # fmt: skip
PATTERNS = {"findall", "finditer", "fullmatch", "match", "search", "split", "sub"}
#: methods whose result is the message, or a part of it.
CUTS = {"casefold", "join", "lower", "lstrip", "replace", "rstrip", "splitlines", "strip", "upper"} | SEARCHES
MARK = re.compile(r"# foreign text: \w+")
REMEDY = "reads a message: give the fact a type or a field, or say `# foreign text: <whose>`"


def test_no_code_recognises_our_messages_by_text() -> None:
    report((f"{m.path}:{line}", REMEDY) for m in modules() for line in findings(m))


def findings(module: Module) -> Iterator[int]:
    """The lines that read a message."""
    lines = module.text.splitlines()
    for scope in (module.tree, *functions(module.tree)):
        nodes = list(_own(scope))
        held = _held(nodes)
        for node in nodes:
            if not isinstance(node, ast.Compare | ast.Call) or not _reads(node, held):
                continue
            if not any(MARK.search(lines[at - 1]) for at in (node.lineno, node.end_lineno or 1)):
                yield node.lineno


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module or function, without those of the functions inside it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend(ast.iter_child_nodes(node))


def _held(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that hold a message in a scope: caught errors, and what is assigned a message."""
    held = {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    assigned = [n for n in nodes if isinstance(n, ast.Assign | ast.AnnAssign | ast.NamedExpr) and n.value is not None]
    for _ in range(2):
        for node in assigned:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value is not None and not isinstance(node.value, ast.Name) and _is_message(node.value, held):
                held |= {target.id for target in targets if isinstance(target, ast.Name)}
    return held


def _is_message(node: ast.expr, held: set[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return name in MESSAGES or name in held
        case ast.Attribute(value=ast.Name(id=name), attr="text"):
            return name in OBSERVATIONS
        case ast.Attribute(attr=name):
            return name in MESSAGES
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[inner]):
            return _is_message(inner, held)
        case ast.Call(func=ast.Attribute(attr="join"), args=[inner]):
            return _is_message(inner, held)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)):
            return name in CUTS and _is_message(inner, held)
        case ast.Subscript(value=inner, slice=key):
            return _is_message(inner, held) or (isinstance(key, ast.Constant) and key.value in MESSAGES)
        case ast.BoolOp(values=values):
            return any(_is_message(value, held) for value in values)
        case _:
            return False


def _reads(node: ast.Compare | ast.Call, held: set[str]) -> bool:
    match node:
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]):
            literal = isinstance(right, ast.Tuple | ast.List | ast.Set)
            return _is_message(right, held) or (literal and _is_message(left, held))
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
            return any(_is_message(a, held) and _is_text(b) for a, b in ((left, right), (right, left)))
        case ast.Call(func=ast.Attribute(value=inner, attr=name), args=args):
            # `split()`, `join` and `replace("\n", " ")` only tidy a message that is shown.
            words = name == "replace" and any(map(str.isalpha, str(getattr((*args, None)[0], "value", ""))))
            searched = (words or (name in SEARCHES and bool(args))) and _is_message(inner, held)
            return searched or (name in PATTERNS and any(_is_message(arg, held) for arg in args))
        case _:
            return False


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)
    )


@pytest.mark.parametrize(
    "code",
    [
        'if "no space" in str(error): pass',
        'ok = "Cache" in error.cause',
        'text = str(error).lower()\nok = "memory" in text',
        'kept = [note for note in notes if note.startswith("fewer")]',
        "cause, _, remedy = fault.reason.partition('\\n')",
        'ok = re.search("x", result.text)',
        'ok = PATTERN.match(turn.message)',
        'ok = message == "timed out"',
        'ok = reason in ("a", "b")',
    ],
)  # fmt: skip
def test_a_reader_of_messages_is_found(code: str) -> None:
    assert list(findings(Module("m.py", code, ast.parse(code))))
    marked = "\n".join(f"{line}  # foreign text: torch's" for line in code.splitlines())
    assert not list(findings(Module("m.py", marked, ast.parse(marked))))


@pytest.mark.parametrize(
    "code",
    [
        'line = " ".join(str(error).split())[:200]',
        "first = str(error).splitlines()[0]",
        'ok = reason == ""',
        "ok = isinstance(error, OSError)",
        'ok = source.startswith("import")',
    ],
)
def test_what_only_shows_a_message_is_allowed(code: str) -> None:
    assert not list(findings(Module("m.py", code, ast.parse(code))))
