"""The tools that ask the judge, and Finish, which ends the run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from pydantic import Field

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.files import CallRefused
from cuda_agent.agent.tools.base import Tool, ToolAnswer
from cuda_agent.agent.tools.say import evaluation_data, say_build, say_evaluation, say_screen
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import UsageError
from cuda_agent.core.files import append_lines
from cuda_agent.core.records import BuildReport, Candidate, Evaluation
from cuda_agent.workspace.inspection import say_inspection

#: file of the evaluations of candidates that failed a trial, one line each.
FAILURES = "failures.jsonl"
MAX_CONFIGS = 64
#: what the data of Inspect holds of its report, and of each kernel.
_INSPECTED = {"limit", "source", "memory_share", "compute_share", "work", "roofline"}
_KERNEL_FACTS = {"name", "time_us", "limit"}


class Compile(Tool):
    """Build kernels/ and the bindings into cuda_extension. No arguments."""

    def run(self, context: ToolContext) -> ToolAnswer:
        candidate = snapshot(context)
        with judging(context):
            report = context.session.build(candidate)
        data = {"succeeded": report.succeeded, "duration_s": report.duration_s, "digest": candidate.digest}
        return ToolAnswer(say_build(report), ok=report.succeeded, data=data)


class Verify(Tool):
    """Build and compare with the reference on fresh inputs and weights, by the judge. No arguments."""

    def run(self, context: ToolContext) -> ToolAnswer:
        candidate = snapshot(context)
        with judging(context):
            evaluation = context.session.verify(candidate)
        _keep_failure(context, evaluation)
        passed = evaluation.verify is not None and evaluation.verify.passed and not evaluation.violations
        data = {**evaluation_data(evaluation), "verified": passed}
        return ToolAnswer(say_evaluation(evaluation), ok=passed, data=data)


class Profile(Tool):
    """Without arguments: the judge builds, verifies and times yours beside the baselines until it is plain whether it
    is faster; the best one that passed is kept, and timed again at the end. With precise: until every ratio is known to
    1 %. With configs: times only yours, once per setting of the CONFIG dictionary in model_new.py, in one build."""

    configs: tuple[dict[str, int], ...] | None = Field(default=None, min_length=1, max_length=MAX_CONFIGS)
    precise: bool = False

    def run(self, context: ToolContext) -> ToolAnswer:
        candidate = snapshot(context)
        if self.configs is not None:
            with judging(context):
                screened = context.session.screen(candidate, [dict(config) for config in self.configs])
            ok = any(time is not None for time in screened.latency_us)
            return ToolAnswer(say_screen(screened), ok=ok, data={"latency_us": list(screened.latency_us)})
        with judging(context):
            evaluation = context.session.evaluate(candidate, stop=None if self.precise else "decided")
        _keep_failure(context, evaluation)
        kept = context.best.offer(candidate, evaluation)
        passed = evaluation.verdict is Verdict.PASSED
        text = say_evaluation(evaluation)
        if passed:
            remains = f"The best so far remains ({context.best.latency_us:,.1f} us)."
            text += f"\n{'Kept as the best so far.' if kept else remains}"
        return ToolAnswer(text, ok=passed, data={**evaluation_data(evaluation), "kept": kept})


class Inspect(Tool):
    """What limits yours: memory, compute or latency, with the numbers against the measured roofline; each kernel's
    time, occupancy, stalls and transactions; registers, shared memory, spills and instruction mix. Decides nothing."""

    def run(self, context: ToolContext) -> ToolAnswer:
        candidate = snapshot(context)
        with judging(context):
            report = context.session.inspect(candidate)
        if isinstance(report, BuildReport):
            return ToolAnswer(say_build(report), ok=False)
        data = report.model_dump(include=_INSPECTED)
        data["kernels"] = [kernel.model_dump(include=_KERNEL_FACTS) for kernel in report.kernels[:12]]
        return ToolAnswer(say_inspection(report), ok=report.limit is not None, data=data)


class Finish(Tool):
    """End the run. The best candidate that passed is kept. Use outcome not_covered or gave_up where there is none."""

    message: str
    outcome: Literal["finished", "not_covered", "gave_up"] = "finished"

    def run(self, context: ToolContext) -> ToolAnswer:
        context.finished = (self.outcome, self.message)
        return ToolAnswer("Finished.")


def snapshot(context: ToolContext) -> Candidate:
    """Returns the candidate as it stands. Raises CallRefused if there is nothing to judge yet."""
    try:
        candidate = context.workspace.snapshot()
    except UsageError as error:
        raise CallRefused(str(error)) from None
    if "model_new.py" not in candidate.files:
        raise CallRefused("There is no model_new.py yet. Write it, and the kernels under kernels/, first.")
    return candidate


def _keep_failure(context: ToolContext, evaluation: Evaluation) -> None:
    """Stores the trial that the candidate failed, so that promotion can try it on later candidates."""
    if evaluation.failing is not None:
        append_lines(context.logs / FAILURES, [evaluation.model_dump_json()])


@contextmanager
def judging(context: ToolContext) -> Iterator[None]:
    """Adds the time of the block to the run's judge time."""
    started = time.monotonic()
    try:
        yield
    finally:
        context.judge_s += time.monotonic() - started
