"""The nodes of a kernel's expression graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cuda_agent.playbook import ir
from cuda_agent.playbook.coords import ORIGIN, Bound, Coord

#: operators that make an index of a dimension: of its index, which may count from the end, and its size.
INDEXING = ("wrap_index", "plain_index")
#: operators that divide.
DIVIDING = ("div", "floordiv", "remainder", "fmod")


@dataclass(frozen=True)
class Expr:
    """A node of a kernel's expression graph. `type` is its compute type.

    `op` is the name of a pointwise operator with operands `args`, or one of:
    `load` (buffer `name` at address `coord`, where the `guards` hold), `const` (`value`), `index` (`coord`), `inside`
    (a bool: whether the `guards` hold), `reduce` (kind `name`; over a sliding window, the `guards` hold its position
    along each of its dimensions), `scan` (kind `name`; `value` is true for a backward scan).
    """

    op: str
    type: str
    args: tuple[int, ...] = ()
    name: str = ""
    dtype: str = ""
    coord: Coord = ORIGIN
    guards: tuple[Bound, ...] = ()
    value: ir.Scalar | None = None

    @property
    def coords(self) -> tuple[Coord, ...]:
        """All positions in it: its own and those of its guards."""
        return (self.coord, *(bound.coord for bound in self.guards))

    def is_checked(self, nodes: "Sequence[Expr]") -> bool:
        """Returns whether PyTorch refuses some values of the operands: indices out of range, and divisors of 0."""
        divides = self.op in DIVIDING and self.type in ("i32", "i64")
        return self.op in INDEXING or (divides and not nodes[self.args[1]].value)

    def mapped(self, node: Callable[[int], int], coord: Callable[[Coord], Coord]) -> "Expr":
        """Returns the expression with other operands and positions."""
        guards = tuple(replace(bound, coord=coord(bound.coord)) for bound in self.guards)
        return replace(self, args=tuple(map(node, self.args)), coord=coord(self.coord), guards=guards)
