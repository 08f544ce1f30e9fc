"""The bounds where a candidate can be compared with eager only: of timed outputs, and of places where eager is finite
and the oracle isn't (algorithms spread a NaN over more places or fewer).

They come from the errors of verification. Each element: |c - e| ≤ atol + rtol·|e|, but for 4 × the share of elements
beyond it that passed plain trials, each within 4 × the largest |c - e| there. Together: ||c - e|| / ||e|| ≤ max(4 ×
(candidate's error + eager's error), floor).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cuda_agent.core.records import Task, TrialReport
from cuda_agent.judge.verify.measured import SLACK, EagerDistance

#: trials with inputs as the task draws them.
PLAIN = ("fresh", "in_place", "new_storage")


@dataclass(frozen=True)
class EagerBounds:
    """`distance` is the relative L2 distance between candidate and eager in verification at the most, and `floor` the
    least that is allowed. `absolute` bounds |c - e| of an excused element, and `share` those beyond atol + rtol·|e|; of
    integers, that may differ."""

    atol: float
    rtol: float
    floor: float
    distance: float = 0.0
    absolute: float = 0.0
    share: float = 0.0

    def relative(self, slack: float = SLACK) -> float:
        """Returns the bound of the relative L2 distance."""
        return max(slack * self.distance, self.floor)

    def most_outside(self, count: int) -> float:
        """Returns how many of so many values may be beyond atol + rtol·|e|: the share, and what a sample may have more
        by chance."""
        usual = self.share * count
        return usual + 4.0 * math.sqrt(usual) + 1.0

    def fault(self, found: EagerDistance) -> str:
        """Returns which bound the elements of a trial break, or ""."""
        if found.largest > self.absolute or found.outside > self.most_outside(found.elements):
            said = f"{found.outside} of {found.elements} values are beyond atol + rtol·|reference|, by up to"
            return f"{said} {found.largest:.3g}, where only the reference is finite"
        if found.relative > self.relative():
            said = f"relative distance {found.relative:.3g} from the reference exceeds {self.relative():.3g}"
            return f"{said}, where only the reference is finite"
        return ""


def eager_bounds(task: Task, trials: Sequence[TrialReport], floor: float) -> list[EagerBounds]:
    """Returns the bounds of each output. Variants have other magnitudes, and so other errors: plain trials count."""
    outputs = zip(*(trial.outputs for trial in trials if trial.kind in PLAIN and trial.outputs), strict=True)
    return [
        EagerBounds(
            atol=task.atol,
            rtol=task.rtol,
            floor=floor,
            distance=max(one.candidate_error for one in found) + max(one.eager_error for one in found),
            absolute=SLACK * max(one.max_abs_error for one in found),
            share=SLACK * max(one.apart for one in found),
        )
        for found in outputs
    ]
