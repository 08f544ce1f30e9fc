"""The gate of speed: the worst lower bound over all cold processes and all baselines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cuda_agent.core.baselines import Baseline
from cuda_agent.core.enums import Verdict
from cuda_agent.core.records import Evaluation, ProfileReport
from cuda_agent.release.checks import failed, passed
from cuda_agent.release.gate import MATCHED, SpeedGate
from cuda_agent.release.records import GateResult

NAME = "speed"


class Process(NamedTuple):
    """One cold process: the candidate's evaluation, and each other kernel's by its name."""

    mine: Evaluation
    others: Mapping[str, Evaluation]


class Over(NamedTuple):
    """Baseline time / candidate time with its 95 % interval."""

    value: float
    low: float
    high: float


def speed(options: SpeedGate, processes: Sequence[Process]) -> GateResult:
    """Every process must show it by itself: what differs between processes is in no interval of one of them."""
    table: list[dict[str, Any]] = []
    notes: list[str] = []
    worst: tuple[float, str] | None = None
    for number, process in enumerate(processes, start=1):
        profile = _timed(process.mine)
        if profile is None:
            said = f"{process.mine.verdict.value}: {process.mine.reason}"
            return failed(NAME, f"process {number} has no time: {said}", table=table)
        found, missing = compared(options, profile, process.others)
        for name, why in missing.items():
            said = f"{name} could not be timed: {why}"
            if options.missing == "fail":
                return failed(NAME, f"process {number}: {said}", table=table)
            notes.append(said)
        us = profile.candidate.latency_us
        for name, over in found.items():
            table.append({"process": number, "baseline": name, "latency_us": us, **over._asdict()})
            if worst is None or over.low < worst[0]:
                interval = f"{over.value:.3f}x [{over.low:.3f}, {over.high:.3f}]"
                worst = over.low, f"process {number}: {interval} over {name}, {us:,.1f} µs"
    if worst is None:
        return failed(NAME, "no baseline was timed", table=table)
    noted = f"; {'; '.join(dict.fromkeys(notes))}" if notes else ""
    needed = f"a lower bound of {options.margin:g}x over every baseline is needed"
    if worst[0] < options.margin:
        return failed(NAME, f"{worst[1]}; {needed}{noted}", table=table)
    return passed(NAME, f"at worst {worst[1]}{noted} (needed: {options.margin:g}x)", table=table)


def compared(
    options: SpeedGate, mine: ProfileReport, others: Mapping[str, Evaluation]
) -> tuple[dict[str, Over], dict[str, str]]:
    """Ratios to what was asked for; what could not be timed, with the reason."""
    found: dict[str, Over] = {}
    missing: dict[str, str] = {}
    asked: tuple[str, ...] = options.baselines
    for name in asked:
        form = _form(name, mine)
        if form in mine.ratios:
            found[form] = Over(mine.ratios[form].value, mine.ratios[form].low, mine.ratios[form].high)
        else:
            failures = mine.failed_baselines
            why = [why for failing, why in failures.items() if Baseline.parse(failing).form == name]
            missing[name] = why[0] if why else "not made"
    for kernel, other in others.items():
        theirs = _timed(other)
        if theirs is None:
            missing[kernel] = f"{other.verdict.value}: {other.reason}"
        else:
            found[kernel] = _over_kernel(mine, theirs)
    return found, missing


def _form(name: str, profile: ProfileReport) -> str:
    """The judge's name of a baseline: some are timed at the policy's precision only."""
    if name == MATCHED:
        return profile.matched
    named = [form for form in profile.ratios if Baseline.parse(form).form == name]
    return name if name in named or not named else named[0]


def _over_kernel(mine: ProfileReport, theirs: ProfileReport) -> Over:
    """Each was timed beside eager, in rounds of its own: of both intervals the ends that are least favourable."""
    own, other = mine.ratios["eager"], theirs.ratios["eager"]
    return Over(own.value / other.value, own.low / other.high, own.high / other.low)


def _timed(evaluation: Evaluation) -> ProfileReport | None:
    return evaluation.profile if evaluation.verdict in (Verdict.PASSED, Verdict.QUARANTINED) else None
