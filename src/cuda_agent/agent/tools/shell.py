"""The tools that run commands in the sandbox."""

from pydantic import Field

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.tools.base import Tool, ToolAnswer


class Bash(Tool):
    """Run a command in the workspace's sandbox: no network, fixed files read-only, no GPU but through `gpu COMMAND`
    (one command at a time, for a bounded time). With background=true it keeps running: see BashOutput and KillBash."""

    command: str = Field(min_length=1)
    timeout_s: float = Field(default=120, gt=0, le=600)
    background: bool = False

    def run(self, context: ToolContext) -> ToolAnswer:
        shell_id = context.shell.start(self.command, timeout_s=None if self.background else self.timeout_s)
        if self.background:
            return ToolAnswer(f"Started as {shell_id}.", data={"shell_id": shell_id})
        state = context.shell.wait(shell_id)
        note = "" if state.exit_code == 0 else f"\n[{state.ended}]"
        text = (state.text or "(no output)") + note
        return ToolAnswer(text, ok=state.exit_code == 0, data={"exit_code": state.exit_code})


class BashOutput(Tool):
    """What a background command has printed since the last look, and whether it still runs."""

    shell_id: str

    def run(self, context: ToolContext) -> ToolAnswer:
        state = context.shell.look(self.shell_id)
        return ToolAnswer(f"{state.text or '(no new output)'}\n[{state.ended}]", data={"exit_code": state.exit_code})


class KillBash(Tool):
    """End a background command and everything that it started."""

    shell_id: str

    def run(self, context: ToolContext) -> ToolAnswer:
        context.shell.kill(self.shell_id)
        return ToolAnswer(f"Ended {self.shell_id}.")
