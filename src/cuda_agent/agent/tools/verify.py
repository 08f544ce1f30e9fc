"""Verify."""

from __future__ import annotations

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.tools.base import Arguments, Tool, ToolAnswer
from cuda_agent.agent.tools.judged import judging, keep_failure, snapshot
from cuda_agent.agent.tools.say import evaluation_data, say_evaluation


class VerifyArguments(Arguments):
    """Build and compare with the reference on fresh inputs and weights, by the judge. No arguments."""


def _run(arguments: VerifyArguments, context: ToolContext) -> ToolAnswer:
    candidate = snapshot(context)
    with judging(context):
        evaluation = context.session.verify(candidate)
    keep_failure(context, evaluation)
    passed = evaluation.verify is not None and evaluation.verify.passed and not evaluation.violations
    return ToolAnswer(say_evaluation(evaluation), ok=passed, data={**evaluation_data(evaluation), "verified": passed})


VERIFY = Tool("Verify", VerifyArguments, _run)
