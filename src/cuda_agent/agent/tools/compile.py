"""Compile."""

from __future__ import annotations

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.tools.base import Arguments, Tool, ToolAnswer
from cuda_agent.agent.tools.judged import judging, snapshot
from cuda_agent.agent.tools.say import say_build


class CompileArguments(Arguments):
    """Build kernels/ and the bindings into cuda_extension. No arguments."""


def _run(arguments: CompileArguments, context: ToolContext) -> ToolAnswer:
    candidate = snapshot(context)
    with judging(context):
        report = context.session.build(candidate)
    data = {"succeeded": report.succeeded, "duration_s": report.duration_s, "digest": candidate.digest}
    return ToolAnswer(say_build(report), ok=report.succeeded, data=data)


COMPILE = Tool("Compile", CompileArguments, _run)
