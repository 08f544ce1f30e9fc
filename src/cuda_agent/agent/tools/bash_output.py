"""BashOutput."""

from __future__ import annotations

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.tools.base import Arguments, Tool, ToolAnswer


class BashOutputArguments(Arguments):
    """What a background command has printed since the last look, and whether it still runs."""

    shell_id: str


def _run(arguments: BashOutputArguments, context: ToolContext) -> ToolAnswer:
    state = context.shell.look(arguments.shell_id)
    return ToolAnswer(f"{state.text or '(no new output)'}\n[{state.ended}]", data={"exit_code": state.exit_code})


BASH_OUTPUT = Tool("BashOutput", BashOutputArguments, _run)
