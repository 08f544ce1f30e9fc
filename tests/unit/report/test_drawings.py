"""Places on axes, shapes of charts, words of explanations."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import timing
from cuda_agent.core.bench import SuiteTask
from cuda_agent.core.plain import plain
from cuda_agent.core.plan import AppliedRule, KernelPlan, PlannedKernel
from cuda_agent.core.records import ToolCall, ToolResult, Turn
from cuda_agent.report import charts
from cuda_agent.report.explain import _steps, explain
from cuda_agent.report.highlight import highlighted
from cuda_agent.report.load import load
from cuda_agent.report.plain import symbol
from cuda_agent.report.rows import ReportRow
from cuda_agent.report.samples import _strip, programs
from cuda_agent.report.scales import Scale, short
from cuda_agent.report.units import geometric_mean, times
from report_runs import bench_directory


def test_scales_hold_their_ends() -> None:
    log = Scale(0.1, 1000, 0, 400, log=True)
    assert [log.at(value) for value in (0.1, 1, 10, 1000)] == [0, 100, 200, 400]
    assert log.at(0) == 0 and log.at(1e9) == 400
    assert [tick.label for tick in log.ticks(5)] == ["0.1", "1", "10", "100", "1,000"]
    assert [tick.label for tick in Scale(0, 7, 0, 70).ticks(5)] == ["0", "2", "4", "6"]
    assert Scale(3, 3, 0, 10).at(3) == 5


def test_short_numbers() -> None:
    assert [short(value) for value in (0.05, 1.5, 12, 1234, 30_000, 2e6)] == ["0.05", "1.5", "12", "1,234", "30k", "2M"]


def test_the_funnel_counts_everyone_once(tmp_path: Path) -> None:
    stages = charts.funnel(load(bench_directory(tmp_path / "run")).rows)
    counts = [stage.count for stage in stages]
    assert counts[:5] == [21, 18, 17, 16, 15] and counts == sorted(counts, reverse=True)
    assert dict(stages[1].lost) == {"not covered": 1, "error": 1, "waiting": 1}
    assert dict(stages[2].lost) == {"build failed": 1} and dict(stages[4].lost) == {"quarantined": 1}


def test_charts_of_a_run(tmp_path: Path) -> None:
    run = load(bench_directory(tmp_path / "run"))
    eager = charts.histograms(run.rows)[0]
    assert eager.timed == 15 and eager.tasks == 21 and eager.mean is not None
    mean = geometric_mean(ratio.value for row in run.rows if (ratio := row.ratio("eager")))
    assert mean is not None and eager.mean.label == times(mean)
    roof = charts.roofline(run.rows, run.limits)
    assert roof is not None and len(roof.dots) == 15 and len(roof.ceilings) == 4
    assert all(dot.before is None or dot.before >= dot.after for dot in roof.dots), "faster is higher, y grows down"
    unmeasured = charts.roofline(run.rows, None)
    assert unmeasured is not None and unmeasured.ceilings == () and not unmeasured.measured
    assert charts.roofline([ReportRow(SuiteTask(id="a", name="a", key="0"))], run.limits) is None


def test_samples_make_a_strip(tmp_path: Path) -> None:
    profile = load(bench_directory(tmp_path / "run")).rows[1].profile
    assert profile is not None
    first, *others = programs(profile)
    assert first.role == "ours" and first.strip is not None and first.strip.count == len(profile.candidate.samples_us)
    assert [p.timing.latency_us for p in others] == sorted(p.timing.latency_us for p in others)
    assert _strip(timing(samples_us=(5.0,))) is None
    even = _strip(timing(low_us=7, latency_us=7, high_us=7, event_us=7, samples_us=(7.0, 7.0, 7.0)))
    assert even is not None and even.values == "7 7 7"


def test_an_explanation_reads_the_notes_of_a_skill() -> None:
    (step,) = _steps([PlannedKernel(name="rows_sum", skill="rowreduce"), PlannedKernel(name="gone", skill="unknown")])
    assert step.title == "Row reductions" and step.kernels == ("rows_sum",) and "<code>held</code>" in step.why


def test_an_explanation_follows_the_plan_that_was_kept() -> None:
    gemm, rows = PlannedKernel(name="gemm_linear", skill="gemm"), PlannedKernel(name="rows_sum", skill="rowreduce")
    applied = [("expose_bias", "linear"), ("fold_batch_norm", "a"), ("fold_batch_norm", "b")]
    kept = KernelPlan(kernels=(gemm, rows), rewrites=tuple(AppliedRule(rule=rule, node=node) for rule, node in applied))
    assert kept.summary.startswith("gemm_linear -> rows_sum (expose_bias: linear; fold_batch_norm: a; ")
    configs = [{"rows_sum": 0}, {"rows_sum": 1}]
    screen = Turn(
        index=1,
        message="Screening rows_sum.",
        calls=(ToolCall(id="1", tool="Profile", arguments={"configs": configs}),),
        results=(ToolResult(call_id="1", text="", data={"latency_us": [30.0, 20.0]}),),
    )
    turns = [
        Turn(index=0, message="", plan=kept),
        screen,
        Turn(index=2, message="", plan=KernelPlan(kernels=(gemm,))),
        Turn(index=3, message="", plan=kept),
    ]
    said = explain(ReportRow(SuiteTask(id="a", name="a", key="0")), '"""Norm.\n\nMore."""', turns, None)
    assert said.computes == "Norm." and [step.skill for step in said.steps] == ["gemm", "rowreduce"]
    assert [(rewrite.name, rewrite.count) for rewrite in said.rewrites] == [("expose_bias", 1), ("fold_batch_norm", 2)]
    assert said.searched == ("2 settings of rows_sum: the fastest took 20.00 µs, 1.50× as fast as the one before.",)


def test_without_a_plan_the_policys_own_words_are_shown() -> None:
    turn = Turn(index=0, message="I fused it.")
    said = explain(ReportRow(SuiteTask(id="a", name="a", key="0")), "def broken(:", [turn], None)
    assert said.words == "I fused it." and said.steps == () and said.computes == ""


@pytest.mark.parametrize("suffix", [".py", ".cu", ".cpp", ".diff", ".txt"])
def test_colours_change_no_text(suffix: str) -> None:
    import re
    from html import unescape

    code = '#include <a.h>\n// "x" & y\n__global__ void f(float* p) { p[0] = 1.0f < 2; }\n'
    text = code + '+ added\n- gone\ndef g():\n    """d"""\n\n'
    assert unescape(re.sub(r"<[^>]+>", "", str(highlighted(text, suffix)))) == text


def test_hidden_marks_are_named_and_symbols_read() -> None:
    assert plain("a\x1b[2Jb\u202ec\u200bd\ud800") == "a�[2Jb[U+202E]c[U+200B]d�"
    assert symbol("_ZN3abc12rows_softmaxILi4EEEvPKfPf") == "rows_softmax"
    assert symbol("_Z4gemmPf") == "gemm" and symbol("nvjet_sm90") == "nvjet_sm90" and symbol("_ZN") == "_ZN"
