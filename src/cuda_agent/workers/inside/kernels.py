"""Records what ran on the GPU during one call, summed by name. The judge knows which kernels are the candidate's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cuda_agent.workers.inside.cupti import CuptiUnavailable, Span, record
from cuda_agent.workers.requests.candidate import KernelRow

_MOST = 200


class Kernels(NamedTuple):
    """`rows` is None where nothing was recorded; `error` then says why."""

    rows: list[KernelRow] | None = None
    error: str = ""


def with_kernels(call: Callable[[], Any]) -> tuple[Any, Kernels]:
    """Returns (the call's result, its kernels). Raises the call's own exceptions."""
    results: list[Any] = []
    try:
        spans = record(lambda: results.append(call()))
    except CuptiUnavailable as error:
        value = results[0] if results else call()
        return value, Kernels(error=str(error)[:200])
    return results[0], Kernels(summed(spans))


def summed(spans: Iterable[Span]) -> list[KernelRow]:
    """Sums all spans of a name. Returns the longest first, at most 200."""
    sums: dict[tuple[str, str], list[int]] = {}
    for span in spans:
        entry = sums.setdefault((span.kind, span.name), [0, 0])
        entry[0] += 1
        entry[1] += span.end_ns - span.start_ns
    rows = [(kind, name, times, ns) for (kind, name), (times, ns) in sums.items()]
    return sorted(rows, key=lambda row: row[3], reverse=True)[:_MOST]
