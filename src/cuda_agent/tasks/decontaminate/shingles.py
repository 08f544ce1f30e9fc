"""Describes a source as a bag of small subtrees (shingles), which measures the similarity of two sources."""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from cuda_agent.core.errors import TaskError
from cuda_agent.core.graph import reached
from cuda_agent.tasks.decontaminate.computation import follow
from cuda_agent.tasks.decontaminate.values import LEAF, NUMBER, Computation, Unfollowable

#: The version changes when shingles can't be compared with those of an older version.
VERSION = 1

Bag = Counter[int]


@dataclass(frozen=True)
class Shingles:
    """The shingles of a source. `computation` are those of the model's computation, empty where it can't be followed.
    `syntax` are those of the syntax tree, which are compared where one of two sources has no computation."""

    computation: Bag
    syntax: Bag


def shingles(source: str, name: str) -> Shingles:
    """Returns the two bags of a source without executing it. Raises TaskError where it isn't Python."""
    try:
        tree = ast.parse(source)
        syntax = _of_syntax(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or str(error) or type(error).__name__
        raise TaskError(f"{name} is not Python: {reason}", "Correct the file, or remove it") from None
    try:
        computation = _of_computation(follow(tree))
    except Unfollowable:
        computation = Counter()
    return Shingles(computation, syntax)


def _of_computation(found: Computation) -> Bag:
    """Returns for every live operator: itself, itself with its operands, with theirs too, and each pair."""
    nodes = found.nodes
    live = sorted(reached([found.root], lambda number: nodes[number].children))
    one = {n: _hash("1", nodes[n].label) for n in live}
    two = {n: _hash("2", nodes[n].label, *sorted(one[c] for c in nodes[n].children)) for n in live}
    bag: Bag = Counter()
    for number in live:
        node = nodes[number]
        if node.label in (LEAF, NUMBER):
            continue
        three = _hash("3", node.label, *sorted(two[c] for c in node.children))
        pairs = [_hash("pair", node.label, nodes[c].label) for c in node.children]
        bag.update([one[number], two[number], three, *pairs])
    return bag


def _of_syntax(tree: ast.Module) -> Bag:
    """Returns for every node its type with the names that the author didn't define, alone and with its children's, in
    any order."""
    own = _own_names(tree)
    bag: Bag = Counter()

    def visit(node: ast.AST) -> int:
        children = [visit(child) for child in _children(node)]
        name = getattr(node, "attr", None) or getattr(node, "id", None)
        shown = str(name) if name is not None and name not in own else ""
        one = _hash("s1", type(node).__name__, shown)
        bag.update([one, _hash("s2", one, *sorted(children))])
        return one

    visit(tree)
    return bag


def _children(node: ast.AST) -> Iterable[ast.AST]:
    for child in ast.iter_child_nodes(node):
        is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if not (is_text or isinstance(child, ast.expr_context | ast.Import | ast.ImportFrom | ast.alias)):
            yield child


def _own_names(tree: ast.Module) -> set[str]:
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
    return own


def _hash(*parts: str | int) -> int:
    """Returns a hash of 63 bits, which fits any file format."""
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
