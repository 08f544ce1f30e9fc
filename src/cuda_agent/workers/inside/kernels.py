"""What ran on the GPU during one call, summed by name: for the judge, who knows which kernels are the candidate's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cuda_agent.workers.inside.cupti import CuptiUnavailable, Span, record

_MOST = 200


def with_kernels(call: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """(what the call returned, {"kernels": [[kind, mangled name, times, ns], …] with the longest first}); `kernels` is
    None, with the reason in `kernels_error`, where CUPTI can't be had. Lets the call's own exceptions pass."""
    results: list[Any] = []
    try:
        spans = record(lambda: results.append(call()))
    except CuptiUnavailable as error:
        value = results[0] if results else call()
        return value, {"kernels": None, "kernels_error": str(error)[:200]}
    return results[0], {"kernels": summed(spans)}


def summed(spans: Iterable[Span]) -> list[list[Any]]:
    """[kind, name, times, ns] of all spans of a name, the longest first, at most 200."""
    sums: dict[tuple[str, str], list[int]] = {}
    for span in spans:
        entry = sums.setdefault((span.kind, span.name), [0, 0])
        entry[0] += 1
        entry[1] += span.end_ns - span.start_ns
    rows: list[list[Any]] = [[kind, name, times, ns] for (kind, name), (times, ns) in sums.items()]
    return sorted(rows, key=lambda row: row[3], reverse=True)[:_MOST]
