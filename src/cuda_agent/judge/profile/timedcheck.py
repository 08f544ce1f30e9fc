"""Checks the timed outputs: secret positions of a candidate's bursts are compared with eager's on the same inputs.

The bounds are those of `verify.eager_bounds`, over the elements of a round, with 1.5 × instead of 4 × for the relative
distance over a block of elements or more, which hardly scatters. That distance detects the answer to other inputs and a
silent change of precision, which the published tolerance may not. Integers may differ, in a round and over all rounds,
in 4 × the share in which verified ones differed (at least one of an output).
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.core.intervals import median
from cuda_agent.judge.verify.eager_bounds import EagerBounds
from cuda_agent.judge.verify.measured import SLACK

POSITIONS = 4096
#: outputs up to this many elements are compared whole.
WHOLE = 16384
#: factor of relative errors over at least a block of elements, which hardly scatter. A candidate that spends its budget
#: in verification must not get four budgets in timing.
SLACK_MANY = 1.5
MANY = 4096
#: one of this many integers may be a tie that verification hasn't met.
MANY_INTEGERS = 64
#: one of this many numbers may be beyond the published bound where verification met none.
_RARE = 1024
#: a round with an error this many times the bound convicts at once. Up to it the median over rounds decides, since a
#: small output that nearly cancels sometimes has a large relative error.
SINGLE_ROUND = 10.0


@dataclass
class OutputCheck:
    """Collects samples of rounds and decides what is wrong with them. `rng` is secret."""

    bounds: Sequence[EagerBounds]
    rng: random.Random
    checked: int = 0
    _slots: int = 0
    _errors: list[list[float]] = field(default_factory=list)
    _elements: list[int] = field(default_factory=list)
    _positions: list[Any] = field(default_factory=list)
    #: output -> sampled values that were apart, and all sampled values.
    _apart: dict[int, tuple[int, int]] = field(default_factory=dict)

    def draw(self, begins: Sequence[Sequence[int]], sizes: Sequence[int], device: str) -> None:
        """Draws the positions of the next round: for each output, where its slots begin, and how many elements each
        has."""
        import torch

        self._slots = len(begins[0]) if begins else 0
        self._positions = []
        for places, size in zip(begins, sizes, strict=True):
            if size <= WHOLE:
                inside = torch.arange(size, device=device).expand(len(places), size)
            else:
                generator = torch.Generator(device).manual_seed(self.rng.getrandbits(62))
                inside = torch.randint(size, (len(places), POSITIONS), generator=generator, device=device)
            self._positions.append((torch.tensor(places, device=device).unsqueeze(1) + inside).reshape(-1))

    def sample(self, take: Callable[[int, Any], Any]) -> list[Any]:
        """Returns what `take(output, positions)` copies of every output, floating point as float64."""
        found = [take(index, positions) for index, positions in enumerate(self._positions)]
        return [values.double() if values.is_floating_point() else values for values in found]

    def compare(self, mine: Sequence[Any], eager: Sequence[Any]) -> str | None:
        """Compares the samples of one round by output. Returns what convicts by itself, or None."""
        self.checked += self._slots * len(mine)
        errors = []
        for index, (c, e) in enumerate(zip(mine, eager, strict=True)):
            reason, error = (
                self._compare_output(index, c, e) if e.is_floating_point() else self._compare_exact(index, c, e)
            )
            if reason is not None:
                return f"output {index}: {reason}"
            errors.append(error)
        self._errors.append(errors)
        self._elements = [values.numel() for values in mine]
        return None

    def verdict(self) -> str | None:
        """Returns what the median over all rounds convicts, or None."""
        for index, errors in enumerate(zip(*self._errors, strict=True)):
            typical, allowed = median(errors), self._relative(index, self._elements[index])
            if typical > allowed:
                return (
                    f"output {index}: timed outputs differ from eager's by {typical:.2g} (relative), "
                    f"verified ones allow {allowed:.2g}"
                )
        return None

    def _relative(self, index: int, elements: int) -> float:
        return self.bounds[index].relative(SLACK if elements < MANY else SLACK_MANY)

    def _compare_output(self, index: int, c: Any, e: Any) -> tuple[str | None, float]:
        import torch

        finite = torch.isfinite(e)
        same = (c == e) | (torch.isnan(c) & torch.isnan(e))
        apart = (c - e).abs()
        bounds = self.bounds[index]
        published = bounds.atol + bounds.rtol * e.abs()
        wrong = torch.where(finite, ~(apart <= published.clamp_min(bounds.absolute)), ~same)
        outside = finite & (apart > published)
        if not bool(wrong.any()) and self._too_many(index, int(outside.sum()), e.numel(), spare=1 / _RARE):
            wrong = outside
        count = int(wrong.sum())
        if count:
            worst = float(torch.where(wrong & finite, apart, torch.zeros_like(apart)).nan_to_num(math.inf).max())
            return f"{count} of {e.numel()} sampled values differ from eager's, by up to {worst:.3g}", math.inf
        square = float(torch.where(finite, e, torch.zeros_like(e)).square().sum())
        distance = float(torch.where(finite, apart, torch.zeros_like(apart)).square().sum())
        error = math.sqrt(distance / square) if square > 0 else 0.0
        bound = self._relative(index, e.numel())
        if error > SINGLE_ROUND * bound:
            allowed = f"verified outputs allow {bound:.2g}"
            return f"sampled values differ from eager's by {error:.2g} (relative), {allowed}", error
        return None, error

    def _compare_exact(self, index: int, c: Any, e: Any) -> tuple[str | None, float]:
        found = self._too_many(index, int((c != e).sum()), e.numel(), least=MANY_INTEGERS)
        return (f"{found[0]} of {found[1]} sampled values differ from eager's", math.inf) if found else (None, 0.0)

    def _too_many(
        self, index: int, count: int, of: int, *, spare: float = 0.0, least: int = 0
    ) -> tuple[int, int] | None:
        """Returns how many values of an output are apart, and of how many, where they are too many in this round or in
        all rounds. Of fewer than `least` values none may be apart."""
        before = self._apart.get(index, (0, 0))
        self._apart[index] = before[0] + count, before[1] + of
        for apart, total in ((count, of), self._apart[index]):
            if apart > (self.bounds[index].most_outside(total) + spare * total if total >= least else 0.0):
                return apart, total
        return None
