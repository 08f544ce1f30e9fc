"""Shows the tasks that were extracted from a model, and the model with faster parts in it."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from cuda_agent.core.baselines import Baseline
from cuda_agent.core.extraction import Extraction, LeftOutPart, WholeModel
from cuda_agent.core.plain import plain
from cuda_agent.report.tables.columns import plain_table
from cuda_agent.report.tables.evaluation import ratio_cells, stack_line, time_cells
from cuda_agent.report.units import microseconds, times
from cuda_agent.reward import keep_original

#: parts that take a smaller share of the time have no line.
_LEAST_SHARE = 0.005


def extraction_view(extraction: Extraction, note: str = "") -> RenderableType:
    """Returns a row for each task, then the parts that are no task, with the reason."""
    words = ("task", "where", "class")
    table = plain_table("task", "of the time", "µs", "calls", "where", "class", left=words, wrap=words)
    for task in extraction.tasks:
        numbers = f"{task.share:.1%}", microseconds(task.time_us), str(task.calls)
        table.add_row(task.name, *numbers, _places(task.paths), plain(task.origin))
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
    """Returns the parts, the times of the whole model, the prediction and the errors."""
    headers = ("replaced", "where", "of the time", "alone faster by", "calls", "to the original")
    table = plain_table(*headers, left=headers[:2], wrap=headers[:2])
    for part in record.parts:
        numbers = (f"{part.share:.1%}", times(part.speedup), str(part.calls), str(part.fallbacks))
        table.add_row(plain(part.task), _places(part.paths), *numbers)
    left = [_left_line(one, "stays in PyTorch") for one in record.left_out if one.share >= _LEAST_SHARE]
    parts: list[RenderableType] = [table, Text(""), *left, *([Text("")] if left else [])]
    if record.original is not None and record.patched is not None and record.speedup is not None:
        timed = plain_table("", "µs", "95 % interval", "patched is faster by", "95 % interval", left=("",), wrap=("",))
        timed.add_row("original", *time_cells(record.original), *ratio_cells(record.speedup))
        for name, ratio in record.others.items():
            timed.add_row(Baseline.parse(name).label, "", "", *ratio_cells(ratio))
        timed.add_row("patched", *time_cells(record.patched), "", "", style="bold")
        parts += [timed, Text("")]
    parts.append(Text(f"predicted from the parts: {times(record.predicted)}, {record.covered:.1%} of the time covered"))
    if record.max_error is not None:
        own = f", the original's own {record.original_error:.2e}" if record.original_error is not None else ""
        parts.append(Text(f"largest error {record.max_error:.2e}{own} (relative L2 against the oracle)"))
    parts.append(_verdict(record))
    if record.closest_attempt is not None:
        parts.append(Text(keep_original(record.closest_attempt), style="bold yellow"))
    parts += [Text(f"note: {plain(note)}") for note in record.notes]
    return Group(*parts)


def _verdict(record: WholeModel) -> Text:
    if not record.agreed:
        return Text(f"the outputs of the patched model don't agree: {plain(record.reason)}", style="bold red")
    if record.speedup is None:
        return Text(f"outputs agree; not timed: {plain(record.reason)}", style="bold yellow")
    return Text("outputs agree", style="bold green")


def _left_line(left: LeftOutPart, what: str = "no task") -> Text:
    return Text(f"{what}, {left.share:.1%}: {plain(left.kind)} ({_places(left.paths)}): {plain(left.reason)}")


def _places(paths: Sequence[str]) -> str:
    return plain(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
