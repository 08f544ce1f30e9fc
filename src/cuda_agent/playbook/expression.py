"""The nodes of a kernel's expression graph."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent.playbook import ir
from cuda_agent.playbook.coords import ORIGIN, Bound, Coord


@dataclass(frozen=True)
class Expr:
    """A node of a kernel's expression graph.

    op `load` (buffer, address, guards), `const` (value), `index` (address), `inside` (guards, a bool), `reduce`
    (kind in `name`; over a sliding window, `guards` hold its position along each of its dimensions), `scan` (kind in
    `name`; `value`: backwards), or the name of a pointwise operator with operands `args`. `type` is the compute type.
    """

    op: str
    type: str
    args: tuple[int, ...] = ()
    name: str = ""
    dtype: str = ""
    coord: Coord = ORIGIN
    guards: tuple[Bound, ...] = ()
    value: ir.Scalar | None = None
