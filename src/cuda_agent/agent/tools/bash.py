"""Bash."""

from __future__ import annotations

from pydantic import Field

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.tools.base import Arguments, Tool, ToolAnswer


class BashArguments(Arguments):
    """Run a command in the workspace's sandbox: no network, fixed files read-only, no GPU but through `gpu COMMAND`
    (one command at a time, for a bounded time). With background=true it keeps running: see BashOutput and KillBash."""

    command: str = Field(min_length=1)
    timeout_s: float = Field(default=120, gt=0, le=600)
    background: bool = False


def _run(arguments: BashArguments, context: ToolContext) -> ToolAnswer:
    if arguments.background:
        shell_id = context.shell.start(arguments.command, timeout_s=None)
        return ToolAnswer(f"Started as {shell_id}.", data={"shell_id": shell_id})
    shell_id = context.shell.start(arguments.command, timeout_s=arguments.timeout_s)
    state = context.shell.wait(shell_id)
    note = "" if state.exit_code == 0 else f"\n[{state.ended}]"
    return ToolAnswer(
        (state.text or "(no output)") + note, ok=state.exit_code == 0, data={"exit_code": state.exit_code}
    )


BASH = Tool("Bash", BashArguments, _run)
