"""Shows the candidates of a recorded run that were judged again: one row each, with the results of then and now."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from cuda_agent.core.baselines import EAGER, MATCHED
from cuda_agent.core.records import Replayed
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
        profile = row.evaluation.profile
        faster = [profile.ratio(name) if profile is not None else None for name in (EAGER, MATCHED)]
        table.add_row(
            str(row.turn),
            row.digest[:12],
            row.recorded_verdict or "not judged",
            row.evaluation.verdict.value,
            known(row.recorded_us, microseconds),
            known(row.us, microseconds),
            ratio,
            *(times(found.value) if found else "—" for found in faster),
        )
    last = rows[-1].evaluation
    return Group(table, Text(f"stack now: {stack_line(last.stack, last)}"))
