"""Lowers orthogonal polynomials of a fixed degree by their three-term recurrences (Abramowitz & Stegun, 22.7)."""

from __future__ import annotations

from collections.abc import Callable

from cuda_agent.core.graph import Node
from cuda_agent.playbook.lower import Builder, CantLower, Lowering

_MOST = 16

#: (a, b) of p_1 = a·x + b.
Line = tuple[float, float]
#: k -> (a, b, c) of p_{k+1} = (a·x + b)·p_k - c·p_{k-1}.
Step = Callable[[int], tuple[float, float, float]]


def _polynomial(first: Line, step: Step, *, shifted: bool = False) -> Lowering:
    def lower(b: Builder, node: Node) -> str:
        x, degree = b.args(node, 0, 1)
        dtype = b.internal(b.out(node).dtype)
        if isinstance(x, str) and isinstance(degree, int | float) and degree == int(degree) and degree <= _MOST:
            if shifted:
                x = _line(b, x, (2.0, -1.0), dtype)
            return b.finish(node, _value(b, x, int(degree), first, step, dtype))
        raise CantLower(f"has a degree that isn't a number up to {_MOST}")

    return lower


def _value(b: Builder, x: str, degree: int, first: Line, step: Step, dtype: str) -> str:
    op = b.typed(dtype)
    if degree <= 0:
        return b.expand(op("copy", float(degree == 0)), b.shape_of(x))
    before, now = None, _line(b, x, first, dtype)
    for k in range(1, degree):
        a, shift, c = step(k)
        product = op("mul", _line(b, x, (a, shift), dtype), now)
        last = c if before is None else op("mul", before, c)
        before, now = now, op("sub", product, last)
    return now


def _line(b: Builder, x: str, line: Line, dtype: str) -> str:
    """Adds a·x + b."""
    slope, shift = line
    scaled = x if slope == 1.0 else b.pointwise("mul", x, slope, dtype=dtype)
    return scaled if shift == 0.0 else b.pointwise("add", scaled, shift, dtype=dtype)


_FIRST_OF_CHEBYSHEV: dict[str, Line] = {"t": (1.0, 0.0), "u": (2.0, 0.0), "v": (2.0, -1.0), "w": (2.0, 1.0)}

TABLE: dict[str, Lowering] = {
    **{
        f"special_{name}chebyshev_polynomial_{kind}": _polynomial(first, lambda _k: (2.0, 0.0, 1.0), shifted=bool(name))
        for kind, first in _FIRST_OF_CHEBYSHEV.items()
        for name in ("", "shifted_")
    },
    "special_hermite_polynomial_h": _polynomial((2.0, 0.0), lambda k: (2.0, 0.0, 2.0 * k)),
    "special_hermite_polynomial_he": _polynomial((1.0, 0.0), lambda k: (1.0, 0.0, float(k))),
    "special_laguerre_polynomial_l": _polynomial(
        (-1.0, 1.0), lambda k: (-1 / (k + 1), (2 * k + 1) / (k + 1), k / (k + 1))
    ),
    "special_legendre_polynomial_p": _polynomial((1.0, 0.0), lambda k: ((2 * k + 1) / (k + 1), 0.0, k / (k + 1))),
}
