"""Shows one evaluation: times of eager, torch.compile, the matched baseline and ours; then errors, verdict, reward."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cuda_agent.core.baselines import Baseline
from cuda_agent.core.enums import SandboxLevel, Verdict
from cuda_agent.core.plain import plain
from cuda_agent.core.records import Evaluation, ProfileReport, Ratio, Reward, Timing, VerifyReport
from cuda_agent.core.stack import Stack
from cuda_agent.report.tables.columns import plain_table
from cuda_agent.report.units import interval, microseconds, times

#: a note explains a ratio that differs from the quotient of the times by more than this share.
_APART = 0.05


def evaluation_view(evaluation: Evaluation, reward: Reward | None, result: str | None = None) -> RenderableType:
    """Returns the table of one evaluation with everything below it. `result` is the folder that holds it."""
    parts: list[RenderableType] = []
    if evaluation.profile is not None:
        parts.append(_times(evaluation.profile))
        parts += [
            Text(f"not timed: {Baseline.parse(k).label}: {v}") for k, v in evaluation.profile.failed_baselines.items()
        ]
        parts += [Text(f"note: {note}") for note in (*evaluation.profile.notes, *remarks(evaluation.profile))]
    parts.append(_facts(evaluation, reward, result))
    return Group(*parts)


def remarks(profile: ProfileReport) -> Iterator[str]:
    """Yields remarks that explain the table's numbers."""
    shown = _shown(profile)
    for name in shown:
        report = profile.compiled.get(name)
        if report is not None and (not report.graphs or report.breaks or report.fallbacks):
            why = f": {plain(report.reasons[0])[:160]}" if report.reasons else ""
            left = "everything" if not report.graphs else f"a part (graph breaks: {report.breaks})"
            yield f"{Baseline.parse(name).label} left {left} to eager{why}"
    ratios = {name: profile.ratios[name].value for name in shown if name in profile.ratios}
    quotients = {name: profile.baselines[name].latency_us / profile.candidate.latency_us for name in ratios}
    if any(abs(value / quotients[name] - 1) > _APART for name, value in ratios.items()):
        yield "ratios compare runs of the same round, so they aren't the quotients of the times"


def _shown(profile: ProfileReport) -> list[str]:
    return list(dict.fromkeys(name for name in ("eager", "compile", profile.matched) if name in profile.baselines))


def _times(profile: ProfileReport) -> Table:
    headers = ("", "µs", "95 % interval", "ours is faster by", "95 % interval", "µs in a full queue")
    table = plain_table(*headers, left=("",))
    for name in _shown(profile):
        mark = " = matched" if name == profile.matched and name in ("eager", "compile") else ""
        named = Baseline.parse(name).label
        label = named if mark or name != profile.matched else f"matched: {named}"
        timing = profile.baselines[name]
        table.add_row(label + mark, *time_cells(timing), *ratio_cells(profile.ratios.get(name)), _queued(timing))
    table.add_row("ours", *time_cells(profile.candidate), "", "", _queued(profile.candidate), style="bold")
    return table


def time_cells(timing: Timing) -> list[str]:
    """Returns the cells of a time: µs and the 95 % interval."""
    return [microseconds(timing.latency_us), interval(timing.low_us, timing.high_us)]


def ratio_cells(ratio: Ratio | None) -> list[str]:
    """Returns the cells of a ratio: its value and the 95 % interval."""
    return [times(ratio.value), f"[{ratio.low:.3f}, {ratio.high:.3f}]"] if ratio else ["—", ""]


def _queued(timing: Timing) -> str:
    return microseconds(timing.queued_us) if timing.queued_us else "—"


def _facts(evaluation: Evaluation, reward: Reward | None, result: str | None) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    if evaluation.verify is not None:
        table.add_row("errors", errors_line(evaluation.verify))
    table.add_row("verdict", _verdict(evaluation))
    for violation in evaluation.violations:
        table.add_row("rule", Text(f"{violation.rule} ({violation.layer}): {violation.detail}"))
    if reward is not None:
        table.add_row("reward", Text(f"{reward.value}  {reward.reason}"))
    table.add_row("stack", Text(stack_line(evaluation.stack, evaluation)))
    if result is not None:
        table.add_row("result", Text(result, no_wrap=True, overflow="ignore"))
    return table


def errors_line(verify: VerifyReport) -> Text:
    """Returns the relative L2 errors against the oracle, from the trial that came nearest to its budget."""
    judged = [t for t in verify.trials if t.candidate_error is not None]
    if not judged:
        return Text("no trial reached the comparison")
    worst = max(judged, key=lambda t: (t.candidate_error or 0.0) / (t.budget or 1.0))
    parts = [
        f"{label} {value:.2e}"
        for label, value in (("ours", worst.candidate_error), ("eager", worst.eager_error), ("allowed", worst.budget))
        if value is not None
    ]
    return Text(f"{', '.join(parts)}  (relative L2 against the {verify.oracle} oracle, worst of {len(judged)} trials)")


def _verdict(evaluation: Evaluation) -> Text:
    passed = evaluation.verdict is Verdict.PASSED
    text = Text(evaluation.verdict.value.replace("_", " "), style="bold green" if passed else "bold red")
    if not passed:
        text.append(f" in {evaluation.phase.value}: {evaluation.reason}", style="not bold default")
    if evaluation.comparison is not None:
        text.append(f"  (a comparison: {evaluation.comparison}, no CUDA extension)", style="not bold yellow")
    if evaluation.sandbox is SandboxLevel.REDUCED:
        text.append("  (sandbox: reduced)", style="not bold yellow")
    return text


def stack_line(stack: Stack, evaluation: Evaluation | None = None) -> str:
    """Returns device, torch, compiler and precision policy on one line."""
    on_gpu = stack.gpus and (evaluation is None or evaluation.device.value == "cuda")
    if on_gpu:
        where = [stack.gpus[0].name, _known("driver ", stack.driver), _known("CUDA ", stack.cuda_compiler)]
    else:
        where = [f"{stack.cpu}, {stack.cpu_cores} cores", _known("", stack.cxx_compiler)]
    parts = [part for part in (*where, _known("torch ", stack.torch)) if part]
    if evaluation is not None:
        parts.append(f"precision policy {evaluation.precision.value}")
    return ", ".join(parts)


def _known(name: str, value: str | None) -> str:
    return f"{name}{value}" if value else ""
