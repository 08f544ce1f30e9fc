"""A task's answers to one set of inputs, which the judge takes piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cuda_agent.core.enums import OracleWay
from cuda_agent.workers.inside.task.slices import Slicing

#: makes the answer to a slice, from its first row and its number of rows.
Slice = Callable[[int, int], list[Any]]
#: slices that are held: a piece may end in one and begin in the one before.
_HELD = 2
#: bytes of an output in float64 that is held from the first pass over the slices on.
_SMALL = 64 << 20


class HeldAnswer:
    """Eager's answer, and the others where they are wanted."""

    def __init__(self, eager: list[Any], policy: Callable[[], list[Any]], oracle: Callable[[list[Any]], Parts]) -> None:
        """`oracle` takes eager's answer."""
        self._flat = flattened(eager)
        # What isn't in row-major order was copied, and goes.
        self._eager = [flat.view(tensor.shape) for flat, tensor in zip(self._flat, eager, strict=True)]
        self._policy, self._oracle = policy, oracle
        self._at_policy: list[Any] | None = None
        self._parts: Parts | None = None

    @property
    def parts(self) -> Parts:
        """The oracle's answer."""
        if self._parts is None:
            self._parts = self._oracle(self._eager)
        return self._parts

    def fill(self, begins: Sequence[int], eager: list[Any], policy: list[Any] | None, oracle: list[Any] | None) -> bool:
        """Copies the elements from `begins` on to flat places. Returns whether they were all."""
        if policy is not None and self._at_policy is None:
            self._at_policy = flattened(self._policy())
        for index, begin in enumerate(begins):
            for places, answers in ((eager, self._flat), (policy, self._at_policy)):
                if places is not None and answers is not None:
                    places[index].copy_(answers[index][begin : begin + places[index].numel()])
        for index, place in enumerate(oracle or ()):
            self.parts.fill(index, begins[index], place)
        return all(place.numel() == answer.numel() for place, answer in zip(eager, self._flat, strict=True))


class Parts:
    """The float64 answer, of which at most two slices are held, and the small outputs."""

    def __init__(self, way: OracleWay, slicing: Slicing, make: Slice, outputs: Sequence[Any]) -> None:
        """`outputs` have the answer's shapes. A task that isn't cut has one slice."""
        self.way, self._slicing, self._make = way, slicing, make
        self._each = [tensor.numel() // slicing.rows * slicing.length for tensor in outputs]
        self._made: dict[int, list[Any]] = {}
        self._small = {index for index, tensor in enumerate(outputs) if 8 * tensor.numel() <= _SMALL}
        self._kept: dict[tuple[int, int], Any] = {}

    def fill(self, index: int, begin: int, place: Any) -> None:
        """Copies the elements of an output from `begin` on to a flat place."""
        done = 0
        while done < place.numel():
            number, offset = divmod(begin + done, self._each[index])
            kept = self._kept.get((number, index))
            part = (self._slice(number)[index] if kept is None else kept)[offset : offset + place.numel() - done]
            place[done : done + part.numel()].copy_(part)
            done += part.numel()

    def _slice(self, number: int) -> list[Any]:
        if number not in self._made:
            while len(self._made) >= _HELD:
                self._made.pop(min(self._made))
            begin = self._slicing.length * number
            made = self._make(begin, min(self._slicing.length, self._slicing.rows - begin))
            self._made[number] = flattened(made)
            self._kept |= {(number, index): self._made[number][index] for index in self._small}
        return self._made[number]


def flattened(tensors: Sequence[Any]) -> list[Any]:
    """Returns the elements in row-major order."""
    return [tensor.detach().reshape(-1) for tensor in tensors]


def is_consecutive(slicing: Slicing, outputs: Sequence[Any]) -> bool:
    """Whether the elements of a slice follow each other in every output."""
    return all(size == 1 for tensor in outputs for size in tensor.shape[: slicing.dim])


def on_the_host(slicing: Slicing, make: Slice, outputs: Sequence[Any]) -> list[Any]:
    """Returns the whole answer in the host's memory, made slice by slice."""
    whole: list[Any] = []
    for begin in slicing.begins():
        length = min(slicing.length, slicing.rows - begin)
        made = make(begin, length)
        whole = whole or [torch.empty(t.shape, dtype=m.dtype) for t, m in zip(outputs, made, strict=True)]
        for place, tensor in zip(slicing.outputs(whole, begin, length), made, strict=True):
            place.copy_(tensor)
    return whole
