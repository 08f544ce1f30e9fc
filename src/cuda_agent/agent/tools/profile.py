"""Profile."""

from __future__ import annotations

from pydantic import Field

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.tools.base import Arguments, Tool, ToolAnswer
from cuda_agent.agent.tools.judged import judging, keep_failure, snapshot
from cuda_agent.agent.tools.say import evaluation_data, say_evaluation, say_screen
from cuda_agent.core.enums import Verdict

MAX_CONFIGS = 64


class ProfileArguments(Arguments):
    """Without arguments: the judge builds, verifies and times yours beside the baselines until it is plain whether it
    is faster; the best one that passed is kept, and timed again at the end. With precise: until every ratio is known to
    1 %. With configs: times only yours, once per setting of the CONFIG dictionary in model_new.py, in one build."""

    configs: tuple[dict[str, int], ...] | None = Field(default=None, min_length=1, max_length=MAX_CONFIGS)
    precise: bool = False


def _run(arguments: ProfileArguments, context: ToolContext) -> ToolAnswer:
    candidate = snapshot(context)
    if arguments.configs is not None:
        with judging(context):
            screened = context.session.screen(candidate, [dict(config) for config in arguments.configs])
        ok = any(time is not None for time in screened.latency_us)
        return ToolAnswer(say_screen(screened), ok=ok, data={"latency_us": list(screened.latency_us)})
    with judging(context):
        evaluation = context.session.evaluate(candidate, stop=None if arguments.precise else "decided")
    keep_failure(context, evaluation)
    kept = context.best.offer(candidate, evaluation)
    passed = evaluation.verdict is Verdict.PASSED
    text = say_evaluation(evaluation)
    if passed:
        text += (
            "\nKept as the best so far." if kept else f"\nThe best so far remains ({context.best.latency_us:,.1f} us)."
        )
    return ToolAnswer(text, ok=passed, data={**evaluation_data(evaluation), "kept": kept})


PROFILE = Tool("Profile", ProfileArguments, _run)
