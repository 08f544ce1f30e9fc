"""Special functions that the playbook's kernels are tried on, on both devices."""

from __future__ import annotations

from typing import Any

import torch


def block_scales(x: Any) -> Any:
    """A row's value makes a result of its own and scales the row."""
    exponent = torch.log2(x.abs().amax(-1) + 1e-7).ceil().clamp(-127, 127)
    return (exponent + 127).to(torch.uint8), x / torch.exp2(exponent).unsqueeze(-1)


def drawn(*shape: int, dtype: Any = torch.float32) -> Any:
    """Normal numbers, the same for the same shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def special(x: Any) -> Any:
    return (
        torch.lgamma(x.abs() + 0.1), torch.erfinv(torch.tanh(x) * 0.999), torch.sinc(x), torch.signbit(x),
        torch.copysign(x, x.flip(0)), torch.special.bessel_j0(x * 4.0), torch.special.bessel_j1(x * 4.0),
        torch.special.bessel_y0(x.abs() + 0.1), torch.special.bessel_y1(x.abs() + 0.1),
    )  # fmt: skip


def modified_bessel(x: Any) -> Any:
    of, y = torch.special, x.abs() + 0.01
    return (
        of.i0(x * 6.0), of.i0e(x * 20.0), of.i1(x * 6.0), of.i1e(x * 20.0), of.modified_bessel_i1(x),
        of.modified_bessel_k0(y * 3.0), of.modified_bessel_k1(y * 3.0),
    )  # fmt: skip


def more_bessel(x: Any) -> Any:
    of, y = torch.special, x.abs() + 0.01
    return (
        of.scaled_modified_bessel_k0(y * 9.0), of.scaled_modified_bessel_k1(y * 9.0), of.spherical_bessel_j0(x * 5.0),
        of.airy_ai(x * 3.0), of.airy_ai(x * 12.0),
    )  # fmt: skip


def gammas(x: Any) -> Any:
    of, y, z = torch.special, x.abs() + 0.3, x.flip(0).abs() * 4.0 + 0.2
    return (
        of.digamma(x * 4.0), of.digamma(y * 30.0), of.polygamma(1, x), of.polygamma(2, y), of.polygamma(4, y * 5.0),
        of.zeta(y + 1.2, z), of.zeta(3.0, z), of.gammainc(y, z), of.gammaincc(y, z), of.gammainc(y * 40.0, z * 40.0),
        of.gammaincc(y * 40.0, y * 41.0),
    )  # fmt: skip


def far_gammas(x: Any) -> Any:
    of, y = torch.special, x.abs() + 0.3
    return of.gammainc(y * 3e5, y * 3.003e5), of.gammaincc(y * 1e8, y * 0.9999e8), of.polygamma(10, x.round() - 0.5)


def small_gammas(x: Any) -> Any:
    """Where the lower one comes near 1, and where hardly a power is left of zeta."""
    of, y, z = torch.special, torch.exp(x * 3.0), torch.exp(x.flip(0) * 3.0)
    return (
        of.gammaincc(y * 1e-3, z * 0.3), of.gammaincc(y * 1e-9, z * 0.1), of.gammaincc(y * 0.1, z * 0.1),
        of.gammainc(y * 1e-3, z * 0.3), of.gammaincc(y, z), of.zeta(1.0 + y, z + 0.1), of.zeta(1.0 + y, 1.0 + z * 0.1),
        of.zeta(torch.round(y) * 40.0 + 2.0, x * 3.0 - 8.0),
    )  # fmt: skip


def edges(x: Any) -> Any:
    """Where simpler formulas go wrong."""
    return (
        torch.round(x.round() * 985.0, decimals=-2), torch.fmax(x.sqrt(), x), torch.fmin(x, x.log()),
        torch.sin(x * 3e9), torch.cos(x * 1e12), torch.heaviside(x.log(), x),
    )  # fmt: skip


def normals(x: Any) -> Any:
    of = torch.special
    return (
        of.erfcx(x * 3.0), of.erfcx(x.abs() * 30.0), of.log_ndtr(x * 5.0), of.ndtri(torch.sigmoid(x * 6.0)), of.ndtr(x),
        torch.heaviside(x, x * 0.0 + 0.5), torch.ldexp(x, x.round()), torch.round(x, decimals=2), of.entr(x),
    )  # fmt: skip


def polynomials(x: Any) -> Any:
    of = torch.special
    return (
        of.chebyshev_polynomial_t(x, 5), of.chebyshev_polynomial_w(x, 2), of.shifted_chebyshev_polynomial_u(x, 3),
        of.hermite_polynomial_h(x, 4), of.hermite_polynomial_he(x, 3), of.laguerre_polynomial_l(x, 4),
        of.legendre_polynomial_p(x, 6), of.chebyshev_polynomial_v(x, 3), of.legendre_polynomial_p(x, 1),
    )  # fmt: skip


SPECIAL: dict[str, tuple[Any, list[Any]]] = {
    "special functions": (special, [drawn(6, 37)]),
    "modified_bessel": (modified_bessel, [drawn(6, 37)]),
    "modified_bessel_double": (
        lambda x: (torch.i0(x * 6.0), torch.special.modified_bessel_k1(x.abs())),
        [drawn(6, 37, dtype=torch.float64)],
    ),
    "more_bessel": (more_bessel, [drawn(6, 37)]),
    "gammas": (gammas, [drawn(6, 37)]),
    "gammas_double": (gammas, [drawn(6, 37, dtype=torch.float64)]),
    "small_gammas": (small_gammas, [drawn(40, 137)]),
    "small_gammas_double": (small_gammas, [drawn(40, 137, dtype=torch.float64)]),
    "far_gammas": (far_gammas, [drawn(6, 37)]),
    "edges": (edges, [drawn(6, 37)]),
    "normals": (normals, [drawn(6, 37)]),
    "normals_double": (normals, [drawn(6, 37, dtype=torch.float64)]),
    "polynomials": (polynomials, [torch.tanh(drawn(6, 37))]),
}
