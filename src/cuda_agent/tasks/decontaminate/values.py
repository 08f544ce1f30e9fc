"""What an expression of a task's source stands for while it is followed, and the computation that comes of it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from cuda_agent.core.hashing import digest_text

MAX_NODES = 20_000
MAX_ITEMS = 4_096
_LONGEST = 160

LEAF = "v"
NUMBER = "#"


class Unfollowable(Exception):
    """The source can't be followed: no model in it, or too much of it."""


@dataclass(frozen=True)
class Node:
    """An operator's word and the nodes that it takes."""

    label: str
    children: tuple[int, ...] = ()


@dataclass
class Computation:
    """Nodes by number; a value that is computed twice stands in it once. `root` takes what `forward` returns."""

    nodes: list[Node] = field(default_factory=list)
    root: int = -1
    _known: dict[tuple[str, str, tuple[int, ...]], int] = field(default_factory=dict)

    def add(self, label: str, children: tuple[int, ...] = (), exact: str = "") -> int:
        """The number of a node. `exact` tells apart what has one label: names of inputs, numbers, layers."""
        key = (label, exact, children)
        if key not in self._known:
            if len(self.nodes) >= MAX_NODES:
                raise Unfollowable("too many operations")
            self._known[key] = len(self.nodes)
            self.nodes.append(Node(label, children))
        return self._known[key]


@dataclass(frozen=True)
class Tensor:
    node: int


@dataclass(frozen=True)
class Const:
    """A number, a text, a shape: anything that isn't a tensor. `value`: of a literal. A long text is its digest."""

    text: str
    value: object = None

    def __post_init__(self) -> None:
        if len(self.text) > _LONGEST:
            object.__setattr__(self, "text", digest_text(self.text)[:16])


@dataclass(frozen=True)
class Api:
    """A name of a library, or a builtin one."""

    name: str


@dataclass(frozen=True)
class Layer:
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
        """Takes further ones at its end. Raises Unfollowable where they are too many."""
        if len(self.values) + len(values) > MAX_ITEMS:
            raise Unfollowable("too long a list")
        self.values.extend(values)


@dataclass(frozen=True)
class Rest:
    """Inputs, as many as are asked for: what stands behind `*` in `forward`'s parameters. `node`: them as one;
    `spread`: given on behind `*`."""

    node: int
    spread: bool = False


@dataclass
class Table:
    """A dict or `nn.ModuleDict`, by the text of its keys."""

    values: dict[str, Value]


@dataclass
class Function:
    """A function of the source; `owner` is bound to its first parameter."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    owner: Instance | None = None


@dataclass
class Class:
    node: ast.ClassDef
    scope: Scope


@dataclass
class Instance:
    """An object of a class of the source."""

    of: Class
    attributes: dict[str, Value]


@dataclass(frozen=True)
class Method:
    """`x.name` before it is called."""

    of: Tensor | Items | Table | Const | Layer | Instance
    name: str


Value = Tensor | Const | Api | Layer | Items | Rest | Table | Function | Class | Instance | Method


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
