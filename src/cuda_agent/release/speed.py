"""The speed gate: the worst lower bound over all cold processes and all baselines. The functions are pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cuda_agent.core.baselines import MATCHED, Baseline
from cuda_agent.core.enums import Verdict
from cuda_agent.core.records import Evaluation, ProfileReport, Ratio
from cuda_agent.release.checks import failed, passed
from cuda_agent.release.gate import SpeedGate
from cuda_agent.release.records import GateResult

NAME = "speed"


class ColdProcess(NamedTuple):
    """The evaluations in one cold process: the candidate's, and those of other kernels by name."""

    mine: Evaluation
    others: Mapping[str, Evaluation]


def speed(options: SpeedGate, processes: Sequence[ColdProcess]) -> GateResult:
    """Checks the margin in each process by itself, because one process's interval doesn't include the differences
    between processes."""
    table: list[dict[str, Any]] = []
    notes: list[str] = []
    worst: tuple[float, str] | None = None
    for number, process in enumerate(processes, start=1):
        profile = _timed(process.mine)
        if profile is None:
            why = f"{process.mine.verdict.value}: {process.mine.reason}"
            return failed(NAME, f"process {number} has no time: {why}", table=table)
        found, missing = compared(options, profile, process.others)
        for name, why in missing.items():
            untimed = f"{name} could not be timed: {why}"
            if options.missing == "fail":
                return failed(NAME, f"process {number}: {untimed}", table=table)
            notes.append(untimed)
        us = profile.candidate.latency_us
        for name, ratio in found.items():
            interval = ratio.model_dump(exclude={"baseline"})
            table.append({"process": number, "baseline": name, "latency_us": us, **interval})
            if worst is None or ratio.low < worst[0]:
                measured = f"{ratio.value:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}]"
                worst = ratio.low, f"process {number}: {measured} over {name}, {us:,.1f} µs"
    if worst is None:
        return failed(NAME, "no baseline was timed", table=table)
    noted = f"; {'; '.join(dict.fromkeys(notes))}" if notes else ""
    needed = f"a lower bound of {options.margin:g}x over every baseline is needed"
    if worst[0] < options.margin:
        return failed(NAME, f"{worst[1]}; {needed}{noted}", table=table)
    return passed(NAME, f"at worst {worst[1]}{noted} (needed: {options.margin:g}x)", table=table)


def compared(
    options: SpeedGate, mine: ProfileReport, others: Mapping[str, Evaluation]
) -> tuple[dict[str, Ratio], dict[str, str]]:
    """Returns the speed-ups over the wanted baselines and kernels, and why others could not be timed."""
    found: dict[str, Ratio] = {}
    missing: dict[str, str] = {}
    for name in options.baselines:
        form = _form(name, mine)
        if form in mine.ratios:
            found[form] = mine.ratios[form]
        else:
            failures = mine.failed_baselines.items()
            missing[name] = next((why for failing, why in failures if Baseline.parse(failing).form == name), "not made")
    for kernel, other in others.items():
        theirs = _timed(other)
        if theirs is None:
            missing[kernel] = f"{other.verdict.value}: {other.reason}"
        else:
            found[kernel] = _over_kernel(mine, theirs, kernel)
    return found, missing


def _form(name: str, profile: ProfileReport) -> str:
    """Returns the judge's name of a baseline; some names include the policy's precision."""
    if name == MATCHED:
        return profile.matched
    named = [form for form in profile.ratios if Baseline.parse(form).form == name]
    return name if name in named or not named else named[0]


def _over_kernel(mine: ProfileReport, theirs: ProfileReport, kernel: str) -> Ratio:
    """Returns the ratio of two speed-ups over eager, with the least favourable ends of both intervals: the kernels were
    timed in different rounds."""
    own, other = mine.ratios["eager"], theirs.ratios["eager"]
    value, low, high = own.value / other.value, own.low / other.high, own.high / other.low
    return Ratio(baseline=kernel, value=value, low=low, high=high)


def _timed(evaluation: Evaluation) -> ProfileReport | None:
    return evaluation.profile if evaluation.verdict in (Verdict.PASSED, Verdict.QUARANTINED) else None
