"""The result of each gate but speed, from evaluations. The functions are pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from cuda_agent.core.config import Regression
from cuda_agent.core.enums import Device, Signal, Verdict
from cuda_agent.core.extraction import WholeModel
from cuda_agent.core.records import Evaluation, TrialReport, Violation
from cuda_agent.core.stack import Stack
from cuda_agent.release.gate import WholeModelGate
from cuda_agent.release.records import GateResult

USUAL = ("fresh", "other_weights", "in_place", "changed_elements", "new_storage")
REGRESSION = "regression"
SANITIZER = "sanitizer"
_OF_TRIALS = ("verification", "precision", "scales", "regressions")


def passed(name: str, reason: str, **data: Any) -> GateResult:
    return GateResult(name=name, status="passed", reason=reason, data=data)


def failed(name: str, reason: str, **data: Any) -> GateResult:
    return GateResult(name=name, status="failed", reason=reason, data=data)


def skipped(name: str, because: str) -> GateResult:
    return GateResult(name=name, status="skipped", reason=because)


def not_applicable(name: str, reason: str) -> GateResult:
    return GateResult(name=name, status="not_applicable", reason=reason)


def guard(evaluations: Sequence[Evaluation]) -> GateResult:
    """Fails where a layer of the guard saw a broken rule in any process."""
    found = [v for one in evaluations for v in one.violations if v.layer != SANITIZER]
    if found:
        first = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return failed("guard", f"{first.layer}/{first.rule}: {first.detail}{more}", violations=dump(found))
    notes = sorted({note for one in evaluations for note in one.notes})
    return passed("guard", "no rule was broken" + (f"; {'; '.join(notes)}" if notes else ""))


def verification(evaluation: Evaluation, regressions: Sequence[Regression] = ()) -> list[GateResult]:
    """Returns the results of `verification`, `precision`, `scales` and `regressions`, from an evaluation whose trials
    ran in this order. `regressions` are the known failures that it tried.

    A failed trial fails the gate of its kind, or `precision` where only the oracle's bound was exceeded.
    """
    names, report = _OF_TRIALS, evaluation.verify
    if evaluation.signal is Signal.NONE:
        refused = failed(
            "verification", "the task's answer is a constant, so a wrong kernel can't be told from a right one"
        )
        return [refused, *(skipped(name, "verification failed") for name in names[1:])]
    if report is None:
        reason = f"{evaluation.verdict.value}: {evaluation.reason}"
        if evaluation.verdict is Verdict.VIOLATION:
            return [skipped(name, "the guard refused the candidate") for name in names]
        variant = None if evaluation.failing is None else evaluation.failing.variant
        gate = "verification" if variant is None else "scales"
        gate = "regressions" if evaluation.failing in regressions else gate
        return [failed(name, reason) if name == gate else skipped(name, f"{gate} failed") for name in names]
    broken = next((trial for trial in report.trials if not trial.passed), None)
    found = {name: _trials(name, report.trials, broken) for name in names}
    if report.dropped_variants:
        reason = f"{found['scales'].reason}; left out: {'; '.join(report.dropped_variants)}"
        found["scales"] = found["scales"].model_copy(update={"reason": reason})
    return list(found.values())


def _trials(name: str, trials: Sequence[TrialReport], broken: TrialReport | None) -> GateResult:
    gate = None if broken is None else _gate_of(broken)
    if broken is not None and name == gate:
        reason = f"trial {broken.kind.replace('_', ' ')}: {broken.reason}"
        return failed(name, reason, trial=broken.model_dump(mode="json"))
    order = _OF_TRIALS
    if gate is not None and (order.index(name) > order.index(gate) or gate == "verification"):
        return skipped(name, f"{gate} failed")
    if name == "precision":
        return _within_budgets(trials)
    # A trial that exceeds only the oracle's bound is within the task's tolerance.
    kept = broken if (name, gate) == ("verification", "precision") else None
    mine = [trial for trial in trials if trial is kept or (trial.passed and _gate_of(trial) == name)]
    if not mine:
        return not_applicable(
            name, "nothing is known to have failed" if name == "regressions" else "there is no such trial"
        )
    kinds = ", ".join(dict.fromkeys(trial.kind.replace("_", " ") for trial in mine))
    return passed(name, f"{len(mine)} trials ({kinds})")


def _within_budgets(trials: Sequence[TrialReport]) -> GateResult:
    known = [trial for trial in trials if trial.candidate_error is not None and trial.budget and trial.passed]
    worst = max(known, key=lambda t: (t.candidate_error or 0.0) / (t.budget or 1.0), default=None)
    if worst is None:
        return passed("precision", "no trial has a budget: the outputs are integers and were compared exactly")
    return passed(
        "precision",
        f"the largest error is {worst.candidate_error or 0.0:.2g} of {worst.budget or 0.0:.2g} "
        f"({worst.kind.replace('_', ' ')}; eager's error is {worst.eager_error or 0.0:.2g})",
    )


def _gate_of(trial: TrialReport) -> str:
    """A failed plain trial within the published tolerance breaks only the oracle's bound: `precision`."""
    if trial.kind in USUAL:
        return "precision" if trial.over_budget else "verification"
    return "regressions" if trial.kind == REGRESSION else "scales"


def shapes(required: bool, outcomes: Mapping[int, Evaluation | str]) -> GateResult:
    """`outcomes` maps a batch size to the evaluation, or to the reason why the reference doesn't accept it."""
    right, refused, left_out = [], [], []
    why = ""
    for size, found in outcomes.items():
        if isinstance(found, str):
            left_out.append(f"{size} ({found})")
        elif found.verify is not None and found.verify.passed and not found.violations:
            right.append(str(size))
        elif found.verdict is Verdict.RAISED and not required:
            refused.append(str(size))
            why = why or found.reason[:160]
        else:
            return failed("shapes", f"a batch of {size}: {found.verdict.value}: {found.reason}", batch=size)
    parts = [f"right at a batch of {', '.join(right)}"] if right else []
    parts += [f"refused at a batch of {', '.join(refused)} ({why})"] if refused else []
    parts += [f"the reference doesn't accept {', '.join(left_out)}"] if left_out else []
    if not right and not refused:
        return not_applicable("shapes", "; ".join(parts) or "no batch dimension")
    return passed("shapes", "; ".join(parts))


def sanitize(findings: Sequence[Violation]) -> GateResult:
    """Fails where compute-sanitizer found something."""
    if findings:
        first = findings[0]
        return failed("sanitize", f"{first.rule}: {first.detail}", violations=dump(findings))
    return passed("sanitize", "memcheck and racecheck found nothing")


def roofline(evaluations: Sequence[Evaluation], device: Device) -> GateResult:
    """Fails where a time is less than the hardware allows."""
    if device is Device.CPU:
        return not_applicable("roofline", "a CPU's caches may hold a task, so memory doesn't bound its time")
    over = [one.reason for one in evaluations if one.verdict is Verdict.QUARANTINED]
    if over:
        return failed("roofline", over[0])
    fewer = any(one.profile is not None and one.profile.fewer_operations for one in evaluations)
    more = "; it takes fewer operations than the reference" if fewer else ""
    return passed("roofline", f"no time is below what memory takes{more}")


def whole_model(options: WholeModelGate, record: WholeModel | None, candidate: str, stack: Stack) -> GateResult:
    """Checks the speed-up of the whole model, measured with exactly this candidate on this stack."""
    name = "whole_model"
    if record is None:
        reason = "no model was given: there is no whole_model.json"
        return failed(name, reason) if options.required else not_applicable(name, reason)
    if candidate not in {part.candidate_digest for part in record.parts}:
        return failed(name, f"the measurement of {record.model} is that of another candidate")
    if record.stack != stack:
        return failed(name, f"{record.model} was measured on another stack")
    if not record.agreed or record.speedup is None:
        return failed(name, f"{record.model}: its outputs differ from the original's: {record.reason or 'no time'}")
    ratio = record.speedup
    measured = f"{record.model}: {ratio.value:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}] as a whole"
    data = {"speedup": ratio.model_dump(), "predicted": record.predicted}
    if ratio.low < options.margin:
        return failed(name, f"{measured}; a lower bound of {options.margin:g}x is needed", **data)
    return passed(name, measured, **data)


def dump(violations: Sequence[Violation]) -> list[dict[str, Any]]:
    return [violation.model_dump() for violation in violations]
