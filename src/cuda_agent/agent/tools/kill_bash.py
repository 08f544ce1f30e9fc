"""KillBash."""

from __future__ import annotations

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.tools.base import Arguments, Tool, ToolAnswer


class KillBashArguments(Arguments):
    """End a background command and everything that it started."""

    shell_id: str


def _run(arguments: KillBashArguments, context: ToolContext) -> ToolAnswer:
    context.shell.kill(arguments.shell_id)
    return ToolAnswer(f"Ended {arguments.shell_id}.")


KILL_BASH = Tool("KillBash", KillBashArguments, _run)
