"""Renders the judge's reports for a policy: a few lines of text each, and the same as data."""

from __future__ import annotations

from typing import Any

from cuda_agent.agent.tools.output import tail
from cuda_agent.core.enums import Phase, Verdict
from cuda_agent.core.records import BuildReport, Evaluation, ProfileReport, ScreenReport, Timing, VerifyReport

_LOG = 6000


def say_build(report: BuildReport) -> str:
    """Returns one line for a success, else the end of the compiler's log."""
    if report.succeeded:
        counts = f"{report.compiled_objects} compiled, {report.cached_objects} from the cache"
        return f"Compiled in {report.duration_s:.1f} s ({counts})."
    return f"Compilation failed.\n{tail(report.log, _LOG)}"


def say_verify(report: VerifyReport) -> str:
    """Returns each failed trial with its reason, and the worst error beside its budget."""
    good = sum(trial.passed for trial in report.trials)
    lines = [f"{good} of {len(report.trials)} trials passed (oracle {report.oracle})."]
    for trial in report.trials:
        if not trial.passed:
            lines.append(f"- {trial.kind}: {trial.reason or 'outside the bounds'}{_errors(trial.model_dump())}")
    worst = max(
        (trial for trial in report.trials if trial.candidate_error is not None),
        key=lambda trial: trial.candidate_error or 0.0,
        default=None,
    )
    if worst is not None and report.passed:
        lines.append(f"Worst relative error:{_errors(worst.model_dump())}")
    return "\n".join(lines)


def _errors(trial: dict[str, Any]) -> str:
    names = {
        "candidate_error": "yours",
        "eager_error": "eager",
        "budget": "allowed",
        "max_abs_error": "max |difference|",
    }
    parts = [f"{label} {trial[key]:.2e}" for key, label in names.items() if trial.get(key) is not None]
    return f" ({', '.join(parts)})" if parts else ""


def say_evaluation(evaluation: Evaluation) -> str:
    """Returns the verdict, then the findings of the last phase."""
    lines: list[str] = []
    reached_end = evaluation.verdict is Verdict.PASSED or (evaluation.verify is not None and evaluation.verify.passed)
    if evaluation.verdict is Verdict.PASSED and evaluation.profile is not None:
        lines.append(headline(evaluation.profile))
    if evaluation.verdict is not Verdict.PASSED and not (reached_end and not evaluation.violations):
        lines.append(
            f"{evaluation.verdict.value} in {evaluation.phase.value}: {evaluation.reason or 'no reason given'}"
        )
    if evaluation.build is not None and not evaluation.build.succeeded:
        lines.append(say_build(evaluation.build))
    lines += [f"- rule {v.rule} ({v.layer}): {v.detail}" for v in evaluation.violations]
    if evaluation.verify is not None:
        lines.append(say_verify(evaluation.verify))
    if evaluation.profile is not None:
        lines.append(say_profile(evaluation.profile))
    elif evaluation.phase is Phase.PROFILE and evaluation.reason:
        lines.append(f"No profile: {evaluation.verdict.value}: {evaluation.reason}")
    if evaluation.log_tail and evaluation.verdict is not Verdict.PASSED:
        lines.append(tail(evaluation.log_tail, _LOG))
    return "\n".join(dict.fromkeys(lines))


def headline(report: ProfileReport) -> str:
    """Returns a line such as `passed: 90.0 us, 1.98x over eager, …`."""
    over = [f"{ratio.value:.2f}x over {name}" for name, ratio in report.ratios.items()]
    return ", ".join([f"passed: {report.candidate.latency_us:,.1f} us", *over])


def say_profile(report: ProfileReport) -> str:
    """Returns times with their 95 % intervals and the candidate's speed-ups."""
    lines = [f"{'yours':<20} {_time(report.candidate)}"]
    for name, timing in report.baselines.items():
        ratio = report.ratios.get(name)
        faster = f"   yours is {ratio.value:.3f}x as fast [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else ""
        mark = " (matched)" if name == report.matched else ""
        lines.append(f"{name + mark:<20} {_time(timing)}{faster}")
    lines += [f"{name}: not timed: {why}" for name, why in report.failed_baselines.items()]
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(lines)


def _time(timing: Timing) -> str:
    text = f"{timing.latency_us:,.1f} us [{timing.low_us:,.1f}, {timing.high_us:,.1f}]"
    return text + (f", busy {timing.busy_us:,.1f}" if timing.busy_us is not None else "")


def evaluation_data(evaluation: Evaluation) -> dict[str, Any]:
    """Returns an evaluation for programs, without the judge's seeds."""
    data: dict[str, Any] = {"verdict": evaluation.verdict.value, "phase": evaluation.phase.value}
    data["digest"] = evaluation.candidate_digest
    if evaluation.verify is not None:
        data["verified"] = evaluation.verify.passed and not evaluation.violations
        data["worst_error"] = evaluation.verify.worst_error
    if evaluation.profile is not None:
        data["latency_us"] = evaluation.profile.candidate.latency_us
        data["ratios"] = {name: [r.value, r.low, r.high] for name, r in evaluation.profile.ratios.items()}
        data["matched"] = evaluation.profile.matched
    return data


def say_screen(report: ScreenReport) -> str:
    """Returns one line per setting, the fastest first and failures last."""
    timed = sorted((time, index) for index, time in enumerate(report.latency_us) if time is not None)
    best = (
        f"Fastest: {timed[0][0]:,.1f} us with {report.configs[timed[0][1]]}." if timed else "No setting could be timed."
    )
    lines = [f"{time:,.1f} us  {report.configs[index]}" for time, index in timed]
    lines += [f"failed: {report.configs[index]}: {why}" for index, why in sorted(report.failures.items())]
    return "\n".join([f"{best} Times of the candidate only, for your own information:", *lines])
