"""Shows a run in a few lines: its outcome, the spent part of its limits, and its best candidate's table."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from cuda_agent.core.records import Budget, Trajectory
from cuda_agent.report.tables.evaluation import evaluation_view
from cuda_agent.report.units import microseconds, seconds
from cuda_agent.reward import closest_attempt, keep_original

_BARS = "▁▂▃▄▅▆▇█"


def trajectory_view(run: Trajectory) -> RenderableType:
    """Returns the outcome with everything below it."""
    head = Text(f"{run.task_name}: {run.outcome.replace('_', ' ')}", style="bold")
    head.append(f"  ({budget_line(run.budget)})", style="not bold")
    parts: list[RenderableType] = [head]
    if run.message and (run.evaluation is None or run.outcome in ("budget", "stalled", "policy_error")):
        parts.append(Text(run.message))
    if run.evaluation is not None:
        parts.append(evaluation_view(run.evaluation, run.reward, run.directory))
        if (closest := closest_attempt(run.evaluation)) is not None:
            parts.append(Text(keep_original(closest, run.evaluation.kernels), style="bold yellow"))
    else:
        parts.append(Text(f"result   {run.directory}", no_wrap=True, overflow="ignore"))
    return Group(*parts)


def budget_line(budget: Budget) -> str:
    """Returns `12 of 60 turns, 34,120 of 100,000 tokens, cost 0.12, 3 min 02 s, judge 41.0 s`. Tokens and cost are left
    out where they have no limit and nothing was spent."""
    parts = [f"{budget.turns_spent} of {budget.turns_limit} turns"]
    if budget.tokens or budget.tokens_limit is not None:
        limit = f" of {budget.tokens_limit:,}" if budget.tokens_limit is not None else ""
        parts.append(f"{budget.tokens:,}{limit} tokens")
    if budget.cost or budget.cost_limit is not None:
        parts.append(f"cost {budget.cost:.4g}" + (f" of {budget.cost_limit:g}" if budget.cost_limit else ""))
    parts.append(seconds(budget.wall_s) + _limit(budget.wall_limit_s))
    parts.append(f"judge {seconds(budget.judge_s)}" + _limit(budget.judge_limit_s))
    return ", ".join(parts)


def _limit(limit_s: float | None) -> str:
    return f" of {seconds(limit_s)}" if limit_s is not None else ""


def history_line(times_us: Sequence[float]) -> str:
    """Returns `best 91.2 µs  █▅▁ of 3 timed`: a bar for each candidate that passed, the slowest the highest; empty
    where none passed."""
    if not times_us:
        return ""
    low, high = min(times_us), max(times_us)
    shown = times_us[-40:]
    spread = (high - low) or 1.0
    bars = "".join(_BARS[round((time - low) / spread * (len(_BARS) - 1))] for time in shown)
    return f"best {microseconds(low)} µs  {bars} of {len(times_us)} timed"
