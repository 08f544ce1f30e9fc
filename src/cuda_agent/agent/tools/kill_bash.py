"""KillBash."""

from __future__ import annotations

from cuda_agent.agent.context import Context
from cuda_agent.agent.tools.base import Answer, Arguments, Tool


class KillBashArguments(Arguments):
    """End a background command and everything that it started."""

    shell_id: str


def _run(arguments: KillBashArguments, context: Context) -> Answer:
    context.shell.kill(arguments.shell_id)
    return Answer(f"Ended {arguments.shell_id}.")


KILL_BASH = Tool("KillBash", KillBashArguments, _run)
