"""Computes the Chebyshev coefficients of `playbook/skills/shared/special.j2` with mpmath at 40 digits.

    .venv/bin/python scripts/special_functions.py

A table holds the coefficients c of f(t) = c_0 / 2 + c_1 T_1(t) + c_2 T_2(t) + …, for t from -1 to 1, up to the last
that is above 1e-17 of the largest. `SINGLE_…` is the number of those up to the last above 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp

mp.mp.dps = 40
_POINTS = 64


def coefficients(function: Callable[[Any], Any]) -> list[Any]:
    """Returns the coefficients of a function of t, by the discrete cosine transform at Chebyshev's points."""
    angles = [mp.pi * (k + mp.mpf(1) / 2) / _POINTS for k in range(_POINTS)]
    values = [function(mp.cos(angle)) for angle in angles]
    found = [
        2 * mp.fsum(v * mp.cos(j * a) for v, a in zip(values, angles, strict=True)) / _POINTS for j in range(_POINTS)
    ]
    return found


def i_far(order: int) -> Callable[[Any], Any]:
    """Returns √x exp(-x) I(x) for x from 8 on, with t = 16 / x - 1."""

    def function(t: Any) -> Any:
        x = 16 / (t + 1)
        return mp.sqrt(x) * mp.exp(-x) * mp.besseli(order, x)

    return function


def k_near(order: int) -> Callable[[Any], Any]:
    """Returns (K(x) ± log(x / 2) I(x)) x^order on [0, 2], with t = x² / 2 - 1."""

    def function(t: Any) -> Any:
        x = mp.sqrt(2 * (t + 1))
        sign = 1 if order == 0 else -1
        return (mp.besselk(order, x) + sign * mp.log(x / 2) * mp.besseli(order, x)) * x**order

    return function


def k_far(order: int) -> Callable[[Any], Any]:
    """Returns √x exp(x) K(x) for x from 2 on, with t = 4 / x - 1."""

    def function(t: Any) -> Any:
        x = 4 / (t + 1)
        return mp.sqrt(x) * mp.exp(x) * mp.besselk(order, x)

    return function


_EDGE = mp.mpf("2.09")
_ZETA = 2 * _EDGE * mp.sqrt(_EDGE) / 3


def airy_near(t: Any) -> Any:
    """Returns Ai(2.09 t)."""
    return mp.airyai(_EDGE * t)


def airy_right(t: Any) -> Any:
    """Returns √π x^(1/4) exp(ζ) Ai(x), ζ = 2/3 x^(3/2), for x from 2.09 on, with t = 2 ζ(2.09) / ζ - 1."""
    zeta = 2 * _ZETA / (t + 1)
    x = (3 * zeta / 2) ** (mp.mpf(2) / 3)
    return mp.sqrt(mp.pi) * mp.root(x, 4) * mp.exp(zeta) * mp.airyai(x)


def airy_left(part: str) -> Callable[[Any], Any]:
    """Returns F or ζ G of Ai(-z) = (sin(ζ + π/4) F - cos(ζ + π/4) G) / (√π z^(1/4)), with t = 2 (ζ(2.09) / ζ)² - 1."""

    def function(t: Any) -> Any:
        zeta = _ZETA / mp.sqrt((t + 1) / 2)
        z = (3 * zeta / 2) ** (mp.mpf(2) / 3)
        angle, scale = zeta + mp.pi / 4, mp.sqrt(mp.pi) * mp.root(z, 4)
        first, second = mp.airyai(-z), mp.airybi(-z)
        if part == "F":
            return scale * (first * mp.sin(angle) + second * mp.cos(angle))
        return zeta * scale * (second * mp.sin(angle) - first * mp.cos(angle))

    return function


TABLES: dict[str, Callable[[Any], Any]] = {
    "I0_FAR": i_far(0), "I1_FAR": i_far(1),
    "K0_NEAR": k_near(0), "K0_FAR": k_far(0), "K1_NEAR": k_near(1), "K1_FAR": k_far(1),
    "AIRY_NEAR": airy_near, "AIRY_RIGHT": airy_right, "AIRY_F": airy_left("F"), "AIRY_G": airy_left("G"),
}  # fmt: skip


def main() -> None:
    for name, function in TABLES.items():
        found = coefficients(function)
        most = max(abs(c) for c in found)
        needed = [max(i for i, c in enumerate(found) if abs(c) > most * bound) + 1 for bound in (1e-17, 1e-9)]
        numbers = ", ".join(mp.nstr(c, 17) for c in found[: needed[0]])
        print(f"constexpr int SINGLE_{name} = {needed[1]};\nconstexpr double {name}[] = {{{numbers}}};")


if __name__ == "__main__":
    main()
