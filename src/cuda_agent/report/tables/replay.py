"""Shows the candidates of a recorded run that were judged again: one row each, with the results of then and now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from cuda_agent.core.records import ProfileReport, Replayed
from cuda_agent.report.tables.columns import plain_table
from cuda_agent.report.tables.evaluation import stack_line
from cuda_agent.report.units import known, microseconds, times


def replay_view(rows: Sequence[Replayed]) -> RenderableType:
    """Returns the table, and the stack of now."""
    words = ("candidate", "recorded", "now")
    numbers = ("recorded µs", "now µs", "recorded / now", "× eager now", "× matched now")
    table = plain_table("turn", *words, *numbers, left=words)
    for row in rows:
        ratio = times(row.recorded_us / row.us) if row.recorded_us is not None and row.us is not None else "—"
        table.add_row(
            str(row.turn),
            row.digest[:12],
            row.recorded_verdict or "not judged",
            row.evaluation.verdict.value,
            known(row.recorded_us, microseconds),
            known(row.us, microseconds),
            ratio,
            *_faster(row.evaluation.profile),
        )
    last = rows[-1].evaluation
    return Group(table, Text(f"stack now: {stack_line(last.stack, last)}"))


def _faster(profile: ProfileReport | None) -> Iterator[str]:
    """Yields how many times the candidate is faster than eager and than the matched baseline."""
    for name in ("eager", profile.matched if profile is not None else None):
        found = profile.ratios.get(name) if profile is not None and name is not None else None
        yield times(found.value) if found is not None else "—"
