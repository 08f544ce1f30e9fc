"""Every timed output can be checked: secret positions of a candidate's bursts against eager's on the same inputs.

Two bounds, from what verification found. Each element: |c - e| ≤ max(atol + rtol·|e|, 4 × the largest |c - e| that
passed verification). All sampled elements of an output in a round: ||c - e|| / ||e|| ≤ max(1.5 × (candidate's error +
eager's error), floor), which sees the answer to other inputs and a silent change of precision, where the published
tolerance sees neither; 4 × below one block of elements, where errors scatter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.judge.intervals import median

POSITIONS = 4096
#: outputs up to this many elements are compared whole.
WHOLE = 16384
SLACK = 4.0
#: of relative errors over at least a block of elements, which hardly scatter: who spends its budget in verification
#: must not win four budgets for timing.
SLACK_MANY = 1.5
MANY = 4096
#: one round this far beyond the bound convicts at once; up to it the median over rounds decides, since a small output
#: that nearly cancels has a large relative error now and then.
SINGLE_ROUND = 10.0
#: share of integers that may differ: values that tie within rounding.
TIES = 1e-3


@dataclass(frozen=True)
class Bounds:
    """`error`: bound of the relative L2 distance to eager, `error_many` over many elements; `absolute`: the largest
    |c - e| that is excused."""

    atol: float
    rtol: float
    error: float
    absolute: float = 0.0
    error_many: float | None = None

    def relative(self, elements: int) -> float:
        """The bound of a relative error over so many elements."""
        return self.error if self.error_many is None or elements < MANY else self.error_many


def bounds_from(
    *, atol: float, rtol: float, candidate_error: float, eager_error: float, max_abs_error: float, floor: float
) -> Bounds:
    """Bounds of the timed outputs from a passed verification's worst errors."""
    apart = candidate_error + eager_error
    few, many = max(SLACK * apart, floor), max(SLACK_MANY * apart, floor)
    return Bounds(atol=atol, rtol=rtol, error=few, absolute=SLACK * max_abs_error, error_many=many)


@dataclass
class OutputCheck:
    """Collects samples of rounds and says what is wrong with them. `rng` is secret."""

    bounds: Bounds
    rng: random.Random
    checked: int = 0
    _errors: list[list[float]] = field(default_factory=list)
    _elements: list[int] = field(default_factory=list)
    _positions: dict[tuple[int, int], Any] = field(default_factory=dict)

    def new_round(self) -> None:
        """Forget the positions: the next ones are drawn when first asked for."""
        self._positions.clear()

    def draw(self, slots: Sequence[Sequence[Any]]) -> None:
        """Choose this round's positions ahead, for outputs of every slot: choosing takes longer than looking."""
        for slot, outputs in enumerate(slots):
            for index, tensor in enumerate(outputs):
                if tensor.numel() > WHOLE:
                    self._drawn(slot, index, tensor)

    def sample(self, slot: int, outputs: Sequence[Any]) -> list[Any]:
        """A slot's outputs at this round's positions, copies in float64 (integers as they are)."""
        found = []
        for index, tensor in enumerate(outputs):
            flat = tensor.reshape(-1)
            if flat.numel() > WHOLE:
                flat = flat[self._drawn(slot, index, flat)]
            found.append(flat.double() if flat.is_floating_point() else flat.clone())
        return found

    def _drawn(self, slot: int, index: int, flat: Any) -> Any:
        import torch

        if (slot, index) not in self._positions:
            generator = torch.Generator().manual_seed(self.rng.getrandbits(62))
            drawn = torch.randint(flat.numel(), (POSITIONS,), generator=generator)
            self._positions[slot, index] = drawn.to(flat.device)
        return self._positions[slot, index]

    def compare(self, mine: Sequence[Sequence[Any]], eager: Sequence[Sequence[Any]]) -> str | None:
        """One round: samples by slot, then by output. Says what convicts by itself, None where nothing does."""
        self.checked += sum(len(outputs) for outputs in mine)
        errors = []
        for index in range(len(eager[0]) if eager else 0):
            pairs = [(m[index], e[index]) for m, e in zip(mine, eager, strict=True)]
            reason, error = self._compare_output(pairs)
            if reason is not None:
                return f"output {index}: {reason}"
            errors.append(error)
        self._errors.append(errors)
        self._elements = [sum(m[index].numel() for m in mine) for index in range(len(errors))]
        return None

    def verdict(self) -> str | None:
        """After all rounds: what the median over rounds convicts."""
        for index, errors in enumerate(zip(*self._errors, strict=True)):
            typical, allowed = median(errors), self.bounds.relative(self._elements[index])
            if typical > allowed:
                return (
                    f"output {index}: timed outputs differ from eager's by {typical:.2g} (relative), "
                    f"verified ones allow {allowed:.2g}"
                )
        return None

    def _compare_output(self, pairs: Sequence[tuple[Any, Any]]) -> tuple[str | None, float]:
        import torch

        c, e = torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs])
        if not e.is_floating_point():
            return self._compare_exact(c, e)
        finite = torch.isfinite(e)
        same = (c == e) | (torch.isnan(c) & torch.isnan(e))
        apart = (c - e).abs()
        published = (self.bounds.atol + self.bounds.rtol * e.abs()).clamp_min(self.bounds.absolute)
        wrong = torch.where(finite, ~(apart <= published), ~same)
        count = int(wrong.sum())
        if count:
            worst = float(torch.where(wrong & finite, apart, torch.zeros_like(apart)).nan_to_num(math.inf).max())
            return f"{count} of {e.numel()} sampled values differ from eager's, by up to {worst:.3g}", math.inf
        square = float(torch.where(finite, e, torch.zeros_like(e)).square().sum())
        distance = float(torch.where(finite, apart, torch.zeros_like(apart)).square().sum())
        error = math.sqrt(distance / square) if square > 0 else 0.0
        bound = self.bounds.relative(e.numel())
        if error > SINGLE_ROUND * bound:
            allowed = f"verified outputs allow {bound:.2g}"
            return f"sampled values differ from eager's by {error:.2g} (relative), {allowed}", error
        return None, error

    def _compare_exact(self, c: Any, e: Any) -> tuple[str | None, float]:
        count, total = int((c != e).sum()), max(1, e.numel())
        allowed = TIES * total + (1 if total >= 64 else 0)
        if count > allowed:
            return f"{count} of {total} sampled values differ from eager's", math.inf
        return None, 0.0
