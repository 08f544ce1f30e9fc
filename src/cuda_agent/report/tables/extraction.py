"""A model taken apart, and put together again with faster parts, as tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cuda_agent.core.baselines import Baseline
from cuda_agent.core.extraction import ExtractedTask, Extraction, LeftOut, WholeModel
from cuda_agent.core.records import Ratio, Timing
from cuda_agent.report.plain import plain
from cuda_agent.report.tables.evaluation import stack_line
from cuda_agent.report.units import interval, microseconds, times

#: what takes less isn't worth a line.
_LEAST_SHARE = 0.005


def extraction_view(extraction: Extraction, note: str = "") -> RenderableType:
    """A row a task, then what is no task and why."""
    table = _table("task", "of the time", "µs", "calls", "where", "class")
    for task in extraction.tasks:
        table.add_row(task.name, f"{task.share:.1%}", microseconds(task.time_us), str(task.calls), *_task_words(task))
    parts: list[RenderableType] = [table]
    left = [one for one in extraction.left_out if one.share >= _LEAST_SHARE]
    if left:
        parts += [Text(""), *(_left_line(one) for one in left)]
    outside = extraction.outside_us / extraction.total_us
    said = f"{microseconds(extraction.total_us)} µs a pass, {extraction.covered:.1%} of it in tasks"
    said += f", {outside:.1%} in the model's own forward" if outside >= _LEAST_SHARE else ""
    parts += [Text(""), Text(said), Text(f"time taken {note}" if note else stack_line(extraction.stack))]
    return Group(*parts)


def whole_model_view(record: WholeModel) -> RenderableType:
    """Parts, then times of the whole, then errors and what was predicted."""
    table = _table("part", "of the time", "alone faster by", "calls", "to the original")
    for part in record.parts:
        table.add_row(plain(part.task), f"{part.share:.1%}", times(part.speedup), str(part.calls), str(part.fallbacks))
    parts: list[RenderableType] = [table, Text("")]
    if record.original is not None and record.patched is not None and record.speedup is not None:
        timed = _table("", "µs", "95 % interval", "patched is faster by", "95 % interval")
        timed.add_row("original", *_time(record.original), *_ratio(record.speedup))
        for name, ratio in record.others.items():
            timed.add_row(Baseline.parse(name).label, "", "", *_ratio(ratio))
        timed.add_row("patched", *_time(record.patched), "", "", style="bold")
        parts += [timed, Text("")]
    parts.append(Text(f"predicted from the parts: {times(record.predicted)}, {record.covered:.1%} of the time covered"))
    if record.max_error is not None:
        own = f", the original's own {record.original_error:.2e}" if record.original_error is not None else ""
        parts.append(Text(f"largest error {record.max_error:.2e}{own} (relative L2 against the oracle)"))
    parts.append(_verdict(record))
    parts += [Text(f"note: {plain(note)}") for note in record.notes]
    return Group(*parts)


def _verdict(record: WholeModel) -> Text:
    if not record.agreed:
        return Text(f"the patched model's outputs don't agree: {plain(record.reason)}", style="bold red")
    if record.speedup is None:
        return Text(f"outputs agree; not timed: {plain(record.reason)}", style="bold yellow")
    return Text("outputs agree", style="bold green")


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, header in enumerate(headers):
        words = header in ("where", "class") or index == 0
        table.add_column(header, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    return table


def _task_words(task: ExtractedTask) -> tuple[str, str]:
    more = f" and {len(task.paths) - 1} more" if len(task.paths) > 1 else ""
    return plain(task.paths[0]) + more, plain(task.origin)


def _left_line(left: LeftOut) -> Text:
    more = f" and {len(left.paths) - 1} more" if len(left.paths) > 1 else ""
    return Text(f"no task, {left.share:.1%}: {plain(left.kind)} ({plain(left.paths[0])}{more}): {plain(left.reason)}")


def _time(timing: Timing) -> tuple[str, str]:
    return microseconds(timing.latency_us), interval(timing.low_us, timing.high_us)


def _ratio(ratio: Ratio) -> tuple[str, str]:
    return times(ratio.value), f"[{ratio.low:.3f}, {ratio.high:.3f}]"
