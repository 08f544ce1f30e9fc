"""Matches layouts with concrete shapes: which names they determine, and which shapes they need."""

from collections.abc import Mapping, Sequence
from typing import Any

from cuda_agent.core.errors import UsageError
from cuda_agent.tasks.expressions import dimensions, evaluate, names_in
from cuda_agent.tasks.expressions import shape as shape_of


class Unsolvable(Exception):
    """The operators don't follow each other at these sizes. Another draw may succeed."""


def value(text: str, names: Mapping[str, Any]) -> Any:
    """Returns the value of an expression. Raises Unsolvable when it has none for these names."""
    try:
        return evaluate(text, names)
    except UsageError as error:
        raise Unsolvable(error.cause) from None


def bind(layout: str, shape: Sequence[int], known: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `known` with the names that `shape` determines. Raises Unsolvable when the shape doesn't fit."""
    starred, named = dimensions(layout)
    lead = len(shape) - len(named)
    if lead < 0 or (lead and not starred):
        raise Unsolvable(f"{tuple(shape)} isn't {layout}")
    bound = dict(known)
    pairs = zip(named, shape[lead:], strict=True)
    for text, size in sorted(pairs, key=lambda pair: not pair[0].isidentifier()):
        _settle(text, size, bound)
    return bound


def leading(layout: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the sizes of the layout's `*` in a shape that fits it."""
    return tuple(shape[: len(shape) - len(dimensions(layout)[1])])


def concrete(layout: str, known: Mapping[str, Any], before: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Returns the shape of a layout; `before` replaces its `*`. Raises Unsolvable when a size isn't positive."""
    try:
        found = shape_of(layout, known, before)
    except UsageError as error:
        raise Unsolvable(error.cause) from None
    if any(size <= 0 for size in found):
        raise Unsolvable(f"{layout} gives {found}")
    return found


def _settle(text: str, size: int, bound: dict[str, Any]) -> None:
    unknown = [name for name in names_in(text) if name not in bound]
    if len(unknown) > 1:
        raise Unsolvable(f"{text} has several unknowns")
    if unknown:
        # Layouts are linear in each name, or divide it by a number, so two points determine the line.
        name = unknown[0]
        at_0, at_4096 = (value(text, {**bound, name: point}) for point in (0, 4096))
        if at_4096 == at_0:
            raise Unsolvable(f"no {name} makes {text} equal {size}")
        bound[name] = round((size - at_0) * 4096 / (at_4096 - at_0))
        if bound[name] <= 0:
            raise Unsolvable(f"no {name} makes {text} equal {size}")
    if value(text, bound) != size:
        raise Unsolvable(f"{text} is {value(text, bound)}, not {size}")
