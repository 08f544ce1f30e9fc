"""One task of a report: how it ended, and the numbers that follow from its evaluation."""

from dataclasses import dataclass
from pathlib import Path

from cuda_agent.core.bench import BenchResult, SuiteTask
from cuda_agent.core.enums import Verdict
from cuda_agent.core.inspection import Roofline
from cuda_agent.core.records import Evaluation, ProfileReport, Ratio, Timing, Trajectory
from cuda_agent.reward import closest_attempt, is_faster, keep_original

#: the states of a task in the order in which they are counted.
STATES = ("passed", "kept", "failed", "not covered", "interrupted", "unfinished", "error", "waiting")


class JudgedRow:
    """What follows from the result of a task. `result` is None where the task has none, and `error` says why if it
    ended with an error instead."""

    result: Trajectory | BenchResult | None
    error: str = ""

    @property
    def evaluation(self) -> Evaluation | None:
        return self.result.evaluation if self.result is not None else None

    @property
    def state(self) -> str:
        """One of `STATES`."""
        if self.result is None:
            return "error" if self.error else "waiting"
        if self.result.outcome in ("error", "unfinished"):
            return self.result.outcome
        if self.evaluation is not None:
            if self.evaluation.verdict is not Verdict.PASSED:
                return "failed"
            return "passed" if closest_attempt(self.evaluation) is None else "kept"
        return {"not_covered": "not covered", "interrupted": "interrupted"}.get(self.result.outcome, "failed")

    @property
    def verdict(self) -> str:
        """The judge's verdict, or the state of a task without one."""
        if self.state in ("passed", "failed") and self.evaluation is not None:
            return self.evaluation.verdict.value.replace("_", " ")
        return self.state

    @property
    def note(self) -> str:
        """Why the task has no time or its original is kept, otherwise empty."""
        if self.result is None or self.state == "passed":
            return self.error
        if self.evaluation is not None and (closest := closest_attempt(self.evaluation)) is not None:
            return keep_original(closest, self.evaluation.kernels)
        if self.evaluation is not None and self.evaluation.verdict is not Verdict.PASSED:
            return self.evaluation.reason or self.verdict
        return self.result.message

    @property
    def profile(self) -> ProfileReport | None:
        """The profile of a candidate that passed."""
        return self.evaluation.passed_profile if self.evaluation is not None else None

    def ratio(self, baseline: str) -> Ratio | None:
        """How many times faster the candidate is than `eager`, `compile` or `matched`; None without a profile."""
        return self.profile.ratio(baseline) if self.profile is not None else None

    def timing(self, baseline: str) -> Timing | None:
        return self.profile.timing(baseline) if self.profile is not None else None

    @property
    def ours(self) -> Timing | None:
        return self.profile.candidate if self.profile is not None else None

    def is_faster(self, baseline: str) -> bool:
        """Whether the lower end of the ratio's interval is at least 5 % above the baseline."""
        return is_faster(self.ratio(baseline))


@dataclass(frozen=True)
class ReportRow(JudgedRow):
    """One task of a recorded run. `result` is None while the task waits, `directory` is None where no run directory was
    left. `source` is the reference as the suite has it."""

    task: SuiteTask
    result: BenchResult | None = None
    directory: Path | None = None
    policy: str = ""
    source: str = ""

    def gb_s(self, timing: Timing | None) -> float | None:
        """The bytes that any answer must move over a program's time, in GB/s; None where one of them isn't known."""
        if self.task.work is None or timing is None:
            return None
        return self.task.work.bytes / timing.latency_us / 1e3

    def memory_share(self, limits: Roofline | None) -> float | None:
        """The share of the measured bandwidth that the candidate reaches, or None where it isn't known."""
        reached = self.gb_s(self.ours)
        return reached / limits.bandwidth_gb_s if reached is not None and limits is not None else None
