"""Finish."""

from __future__ import annotations

from typing import Literal

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.tools.base import Arguments, Tool, ToolAnswer


class FinishArguments(Arguments):
    """End the run. The best candidate that passed is kept. Use outcome not_covered or gave_up where there is none."""

    message: str
    outcome: Literal["finished", "not_covered", "gave_up"] = "finished"


def _run(arguments: FinishArguments, context: ToolContext) -> ToolAnswer:
    context.finished = (arguments.outcome, arguments.message)
    return ToolAnswer("Finished.")


FINISH = Tool("Finish", FinishArguments, _run)
