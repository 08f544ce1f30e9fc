"""Tables from records."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

from cuda_agent.cli.optimize import exit_code
from cuda_agent.core.enums import Device, Phase, Precision, SandboxLevel, Verdict
from cuda_agent.core.records import (
    Budget,
    BuildReport,
    Candidate,
    CompileReport,
    Evaluation,
    ProfileReport,
    Ratio,
    Timing,
    Trajectory,
    TrialReport,
    VerifyReport,
)
from cuda_agent.core.stack import Stack
from cuda_agent.report.tables.evaluation import evaluation_view, remarks
from cuda_agent.report.tables.suite import RunRow, suite_view, summary
from cuda_agent.report.units import geometric_mean, microseconds, seconds, times
from cuda_agent.reward import reward

CANDIDATE = Candidate(files={"model_new.py": "x"})
STACK = Stack(python="3.11", cpu="a cpu", cpu_cores=2, cuda_agent="0.1.0", torch="2.13.0+cpu", cxx_compiler="g++ 12")


def timing(value: float) -> Timing:
    return Timing(latency_us=value, low_us=value * 0.99, high_us=value * 1.01, event_us=value, repetitions=10)


def evaluation(verdict: Verdict = Verdict.PASSED, ours: float = 1000.0) -> Evaluation:
    passed = verdict is Verdict.PASSED
    trial = TrialReport(kind="fresh", passed=passed, candidate_error=3e-7, eager_error=2e-7, budget=2e-6)
    bases = {"eager": timing(2000.0), "compile": timing(1500.0), "compile_tf32": timing(1200.0)}
    ratios = {
        name: Ratio(baseline=name, value=t.latency_us / ours, low=t.latency_us / ours * 0.99, high=t.latency_us / ours)
        for name, t in bases.items()
    }
    profile = ProfileReport(
        candidate=timing(ours), baselines=bases, ratios=ratios, matched="compile_tf32", rounds=3, checked_outputs=9
    )
    return Evaluation(
        task_key="k", candidate_digest=CANDIDATE.digest, device=Device.CPU, precision=Precision.TF32, verdict=verdict,
        phase=Phase.PROFILE if passed else Phase.VERIFY, reason="" if passed else "outside the bounds",
        build=BuildReport(succeeded=True, candidate_digest="d", library_digest="l", duration_s=1.0),
        verify=VerifyReport(passed=passed, trials=(trial,)), profile=profile if passed else None,
        sandbox=SandboxLevel.REDUCED, stack=STACK,
    )  # fmt: skip


def trajectory(name: str, judged: Evaluation | None, outcome: str = "finished", message: str = "") -> Trajectory:
    return Trajectory(
        task_key="k", task_name=name, policy="playbook", turns=(), budget=Budget(turns_limit=1), outcome=outcome,
        message=message, best=CANDIDATE if judged else None, evaluation=judged,
        reward=reward(judged) if judged else None,
    )  # fmt: skip


def text(view: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(view)
    return out.getvalue()


def test_remarks_say_what_the_numbers_do_not() -> None:
    profile = evaluation().profile
    assert profile is not None and not list(remarks(profile))
    slow = evaluation(ours=2200.0).profile
    assert slow is not None and list(remarks(slow)) == []
    broken = CompileReport(graphs=1, breaks=2, reasons=("no RNN",), fallbacks=1)
    ratios = {**profile.ratios, "eager": Ratio(baseline="eager", value=2.2, low=2.1, high=2.3)}
    said = list(remarks(profile.model_copy(update={"compiled": {"compile": broken}, "ratios": ratios})))
    assert said[0] == "torch.compile (float32) left a part (graph breaks: 2) to eager: no RNN"
    assert len(said) == 2 and "aren't the quotients" in said[1]
    nothing = {"compile_tf32": CompileReport(graphs=0), "frozen": broken}
    (said_of,) = remarks(profile.model_copy(update={"compiled": nothing}))
    assert said_of == "torch.compile (tf32) left everything to eager"


def test_units() -> None:
    assert [microseconds(v) for v in (1234567.8, 123.456, 1.234)] == ["1,234,568", "123.5", "1.23"]
    assert [times(v) for v in (1.234, 1234.5)] == ["1.23×", "1,234×"]
    assert [seconds(v) for v in (3.21, 125)] == ["3.2 s", "2 min 05 s"]
    assert geometric_mean([1.0, 4.0]) == 2.0
    assert geometric_mean([]) is None


def test_the_table_of_one_evaluation() -> None:
    judged = evaluation()
    shown = text(evaluation_view(judged, reward(judged), "runs/x"))
    for words in (
        "eager", "torch.compile (float32)", "matched: torch.compile (tf32)", "ours", "2,000", "1,500", "1,200", "1,000",
        "2.00×", "1.50×", "1.20×", "[990.0, 1,010]", "ours 3.00e-07, eager 2.00e-07, allowed 2.00e-06", "passed",
        "reduced", "reward", "3  ", "runs/x", "a cpu, 2 cores", "torch 2.13.0+cpu",
    ):  # fmt: skip
        assert words in shown, words


def test_a_failure_says_why_and_has_no_times() -> None:
    judged = evaluation(Verdict.INCORRECT)
    shown = text(evaluation_view(judged, reward(judged)))
    assert "incorrect in verify: outside the bounds" in shown
    assert "-1" in shown
    assert "µs" not in shown


def test_a_suite_counts_failures_and_averages_over_the_correct() -> None:
    rows = [
        RunRow("a", trajectory("a", evaluation(ours=1000.0))),
        RunRow("b", trajectory("b", evaluation(ours=250.0))),
        RunRow("c", trajectory("c", evaluation(Verdict.INCORRECT))),
        RunRow("d", trajectory("d", None, "not_covered", "no skill covers aten.foo")),
        RunRow("e", error="no Model"),
    ]
    facts = summary(rows)
    assert facts["tasks"] == 5
    assert facts["states"] == {"passed": 2, "failed": 1, "not covered": 1, "error": 1}
    assert abs(facts["geomean_vs_eager"] - 4.0) < 1e-9
    assert facts["timed_vs_eager"] == 2
    assert facts["faster_than_matched"] == 2
    shown = text(suite_view(rows))
    for words in ("d: not covered: no skill covers aten.foo", "e: error: no Model", "5 tasks:", "4.00× (of 2)", "2/5"):
        assert words in shown, words
    assert "2.00× [" in shown and "8.00× [" in shown, "no ratio without its interval"
    assert "ratios vs matched" not in shown


def test_ratios_that_are_hardly_known_are_counted() -> None:
    sure, unsure = evaluation(ours=1000.0), evaluation(ours=250.0)
    assert unsure.profile is not None
    ratio = unsure.profile.ratios[unsure.profile.matched]
    ratios = {**unsure.profile.ratios, unsure.profile.matched: ratio.model_copy(update={"low": 0.5 * ratio.value})}
    profile = unsure.profile.model_copy(update={"ratios": ratios})
    rows = [
        RunRow("a", trajectory("a", sure)),
        RunRow("b", trajectory("b", unsure.model_copy(update={"profile": profile}))),
    ]
    assert "of 2 ratios vs matched 1 begin below 0.8 of their value" in " ".join(text(suite_view(rows)).split())


def test_what_a_task_says_doesnt_steer_the_terminal() -> None:
    shown = text(suite_view([RunRow("a[bold]", error="bad \x1b[31mred \u202e")]))
    assert "a[bold]" in shown and "\x1b" not in shown and "[U+202E]" in shown


def test_exit_codes_of_a_run() -> None:
    assert exit_code(trajectory("a", evaluation())) == 0
    assert exit_code(trajectory("a", evaluation(ours=1190.0))) == 15, "the interval reaches 1"
    assert exit_code(trajectory("a", evaluation(Verdict.INCORRECT))) == 9
    assert exit_code(trajectory("a", None, "not_covered")) == 10
    gave_up = trajectory("a", None, "gave_up")
    assert exit_code(gave_up) == 14
    assert exit_code(gave_up.model_copy(update={"policy": "llm"})) == 9
    assert exit_code(trajectory("a", evaluation(), "interrupted")) == 130
    assert exit_code(trajectory("a", None, "policy_error")) == 7
