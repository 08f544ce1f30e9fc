"""The symbolic values of expressions, and the computation that results from them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from cuda_agent.core.hashing import digest_text

MAX_NODES = 20_000
MAX_ITEMS = 4_096
_LONGEST = 160
_MOST_BASES = 10

LEAF = "v"
NUMBER = "#"


class Unfollowable(Exception):
    """The source can't be followed: it has no model, or it is too large."""


@dataclass(frozen=True)
class ComputationNode:
    """An operator's word and its operands."""

    label: str
    children: tuple[int, ...] = ()


@dataclass
class Computation:
    """The nodes of a computation by number; a value that is computed twice is one node. `root` takes the outputs of
    `forward`."""

    nodes: list[ComputationNode] = field(default_factory=list)
    root: int = -1
    _known: dict[tuple[str, str, tuple[int, ...]], int] = field(default_factory=dict)

    def add(self, label: str, children: tuple[int, ...] = (), exact: str = "") -> int:
        """Returns the number of a node. `exact` tells apart nodes of the same label: names of inputs, numbers,
        layers."""
        key = (label, exact, children)
        if key not in self._known:
            if len(self.nodes) >= MAX_NODES:
                raise Unfollowable("too many operations")
            self._known[key] = len(self.nodes)
            self.nodes.append(ComputationNode(label, children))
        return self._known[key]


@dataclass(frozen=True)
class Tensor:
    node: int


@dataclass(frozen=True)
class Const:
    """A value that isn't a tensor, such as a number, a text or a shape. `value` is that of a literal. A long text is
    replaced by its digest."""

    text: str
    value: object = None

    def __post_init__(self) -> None:
        if len(self.text) > _LONGEST:
            object.__setattr__(self, "text", digest_text(self.text)[:16])


@dataclass(frozen=True)
class Api:
    """A name of a library, or a builtin name."""

    name: str


@dataclass(frozen=True)
class LibraryLayer:
    """A module of a library, made at one place of the source."""

    word: str
    exact: str


@dataclass
class Items:
    """A tuple, a list, `nn.Sequential` (`chained`) or `nn.ModuleList`."""

    values: list[Value]
    chained: bool = False

    def __post_init__(self) -> None:
        self.grow(())

    def grow(self, values: Sequence[Value]) -> None:
        """Appends values. Raises Unfollowable where they are too many."""
        if len(self.values) + len(values) > MAX_ITEMS:
            raise Unfollowable("a list is too long")
        self.values.extend(values)


@dataclass(frozen=True)
class Rest:
    """Any number of inputs: the `*` parameter of `forward`. `node` is all of them; `spread` means passed on with
    `*`."""

    node: int
    spread: bool = False


@dataclass
class Table:
    """A dict or `nn.ModuleDict`, by the text of its keys."""

    values: dict[str, Value]


@dataclass
class SourceFunction:
    """A function of the source; `owner` is bound to its first parameter."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    owner: Instance | None = None


@dataclass
class SourceClass:
    node: ast.ClassDef
    scope: Scope

    def inherited(self, name: str, depth: int = 0) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, Scope] | None:
        """Returns the method of the base classes in the source, and its module's names."""
        for base in self.node.bases if depth < _MOST_BASES else ():
            above = self.scope.look(base.id) if isinstance(base, ast.Name) else None
            if isinstance(above, SourceClass) and (found := above.find(name, depth + 1)):
                return found
        return None

    def find(self, name: str, depth: int = 0) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, Scope] | None:
        """Returns the method of the class or of its base classes in the source, and its module's names."""
        for statement in self.node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == name:
                return statement, self.scope
        return self.inherited(name, depth)


@dataclass
class Instance:
    """An object of a class of the source."""

    of: SourceClass
    attributes: dict[str, Value]

    def member(self, name: str) -> Value | None:
        """Returns an attribute, or a method."""
        if name in self.attributes:
            return self.attributes[name]
        found = self.of.find(name)
        if found is None:
            return None
        words = [d.id for d in found[0].decorator_list if isinstance(d, ast.Name)]
        return SourceFunction(*found, None if "staticmethod" in words else self)


@dataclass(frozen=True)
class Method:
    """`x.name` before it is called."""

    of: Tensor | Items | Table | Const | LibraryLayer | Instance
    name: str


Value = Tensor | Const | Api | LibraryLayer | Items | Rest | Table | SourceFunction | SourceClass | Instance | Method


@dataclass
class Scope:
    """Names in a function, or in the module (`above` is None)."""

    names: dict[str, Value] = field(default_factory=dict)
    above: Scope | None = None
    returned: list[Value] = field(default_factory=list)

    def look(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.above
        return None


def tensors(value: Value) -> list[int]:
    """Returns the numbers of the nodes in a value, in order. Raises Unfollowable where they are too many."""
    found: list[int] = []
    waiting = [value]
    for _ in range(MAX_ITEMS):
        if not waiting:
            return found
        item = waiting.pop()
        if isinstance(item, Tensor | Rest):
            found.append(item.node)
        elif isinstance(item, Items):
            waiting += reversed(item.values)
        elif isinstance(item, Table):
            waiting += reversed(item.values.values())
    raise Unfollowable("too much in a list")


def text(value: Value, depth: int = 3) -> str:
    """Returns a text that tells apart values that aren't tensors; in lists down to the depth of indices."""
    if isinstance(value, Const):
        return value.text
    if isinstance(value, Items) and depth:
        return f"[{', '.join(text(item, depth - 1) for item in value.values[:8])}]"
    return value.name if isinstance(value, Api) else type(value).__name__
