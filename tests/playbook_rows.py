"""Functions of rows, and rows on which formulas of textbooks go wrong."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F


def _rows(length: int) -> Any:
    """Rows of large numbers, of large gaps, and with infinities and NaN at one place or at all."""
    x = torch.randn(16, length, generator=torch.Generator().manual_seed(length))
    x[0] = -torch.inf
    x[1] = torch.inf
    x[2, length // 2 :] = -torch.inf
    x[3, 3] = torch.inf
    x[4, 3] = torch.nan
    x[5, 2], x[5, 3] = torch.inf, -torch.inf
    x[6] += 1e6
    x[7] -= 1e6
    x[8, 5] += 95.0
    x[9, 5] += 300.0
    x[10] = 0.0
    x[11] *= 1e20
    x[12] *= 1e-20
    x[13] *= 1e-40
    x[14] = 2e38
    return x


def entropy(x: Any) -> Any:
    p = torch.softmax(x, -1)
    return -(p * torch.log(p)).sum(-1), torch.log(p)


def masked_attention_weights(x: Any) -> Any:
    return torch.ops.aten._safe_softmax(x, -1)


def _targets(x: Any) -> Any:
    return torch.arange(len(x), device=x.device) % 7


FUNCTIONS = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "logsumexp": lambda x: (torch.logsumexp(x, -1), torch.logsumexp(x[:, 3:6], 0)),
    "entropy": entropy,
    "safe softmax": masked_attention_weights,
    "cross entropy": lambda x: F.cross_entropy(x, _targets(x), reduction="none"),
    "smoothed cross entropy": lambda x: F.cross_entropy(x, _targets(x), reduction="none", label_smoothing=0.1),
    "expected cross entropy": lambda x: F.cross_entropy(x, x * 0.0 + 1.0 / x.shape[1], reduction="none"),
    "extremes": lambda x: (x.amax(-1), x.amin(-1), x.argmax(-1), x.argmin(-1), *x.max(-1)),
    "sums": lambda x: (x.sum(-1), x.mean(-1), torch.linalg.vector_norm(x, dim=-1)),
    "scans": lambda x: (x.abs().cumsum(-1), torch.logcumsumexp(x, -1), x.cummax(-1).values),
}  # fmt: skip

CASES: dict[str, tuple[Any, list[Any]]] = {
    f"{name} of {length}": (function, [_rows(length)])
    for (name, function), length in itertools.product(FUNCTIONS.items(), (37, 1024))
}


#: the row in which a function's result depends on subnormal numbers. On cuda these are 0, as the judge builds kernels.
_SUBNORMAL = {"entropy": 8, "sums": 12, "extremes": 13}


def check_rows(name: str, ours: Any, eager: Any, exact: Any) -> None:
    """The same infinities and NaN as eager's, and elsewhere errors as small as eager's."""
    flushed = 1.2e-38 if ours.is_cuda else 1e-44
    odd = ~eager.isfinite() if eager.is_floating_point() else torch.ones_like(eager, dtype=torch.bool)
    same = (ours == eager) | (ours.isnan() & eager.isnan())
    error, allowed = (ours.double() - exact).abs(), 4 * (eager.double() - exact).abs() + 4e-6 * exact.abs() + flushed
    bad = torch.where(odd, ~same, ~(error <= allowed))
    rows = bad.reshape(len(bad), -1).any(-1).nonzero().flatten().tolist()
    if ours.is_cuda:
        rows = [row for row in rows if row != _SUBNORMAL.get(name.partition(" of ")[0])]
    assert not rows, f"{name}: rows {rows}: {ours[bad][:4].tolist()}, eager {eager[bad][:4].tolist()}"
