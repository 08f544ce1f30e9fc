"""What a run has spent, and whether it has reached one of its limits."""

import time
from collections.abc import Sequence

from cuda_agent.core.config import Limits
from cuda_agent.core.records import Budget, Turn


class Accounts:
    """The accounts of one run. Time counts while this process runs. A resumed run continues from what it had spent."""

    def __init__(self, limits: Limits, before: Budget | None = None) -> None:
        self.limits = limits
        self.before = before or Budget(turns_limit=limits.turns)
        self._started = time.monotonic()

    def budget(self, turns: Sequence[Turn], judge_s: float) -> Budget:
        """Returns the budget at this moment."""
        limits = self.limits
        return Budget(
            turns_limit=limits.turns,
            turns_spent=len(turns),
            wall_s=self.before.wall_s + time.monotonic() - self._started,
            judge_s=judge_s,
            tokens=sum(turn.tokens_in + turn.tokens_out for turn in turns),
            cost=sum(turn.cost or 0.0 for turn in turns),
            wall_limit_s=limits.wall_s,
            judge_limit_s=limits.judge_s,
            tokens_limit=limits.tokens,
            cost_limit=limits.cost,
        )


def exhausted(budget: Budget) -> str | None:
    """Returns a sentence on the limit that is reached, with its figures, or None."""
    if budget.turns_left == 0:
        return f"all {budget.turns_limit} turns are spent"
    if budget.tokens_left == 0:
        return f"all {budget.tokens_limit:,} tokens are spent ({budget.tokens:,})"
    if budget.cost_left == 0:
        return f"the cost of {budget.cost_limit:g} is spent ({budget.cost:.4g})"
    if budget.wall_left_s == 0 and budget.wall_limit_s is not None:
        return f"all {budget.wall_limit_s / 60:g} minutes are spent ({budget.wall_s / 60:.1f})"
    if budget.judge_left_s == 0 and budget.judge_limit_s is not None:
        return f"all {budget.judge_limit_s / 60:g} minutes of the judge are spent ({budget.judge_s / 60:.1f})"
    return None
