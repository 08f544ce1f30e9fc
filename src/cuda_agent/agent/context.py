"""What the tools of one run share: the workspace, the session with the judge, the shell, the best candidate."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cuda_agent.agent.best import Best
from cuda_agent.agent.files import WorkspaceFiles
from cuda_agent.core.config import TimingStop
from cuda_agent.core.graph import Graph
from cuda_agent.core.inspection import InspectReport
from cuda_agent.core.records import BuildReport, Candidate, Evaluation, ScreenReport
from cuda_agent.workspace.layout import Workspace

if TYPE_CHECKING:
    from cuda_agent.agent.shell import Shell

#: progress(phase, text) shows one line to the user.
Progress = Callable[[str, str], None]


class Session(Protocol):
    """The judge as the agent uses it (`judge.session.JudgeSession`)."""

    def graph(self) -> Graph: ...
    def build(self, candidate: Candidate) -> BuildReport: ...
    def verify(self, candidate: Candidate) -> Evaluation: ...
    def screen(self, candidate: Candidate, configs: list[dict[str, int]]) -> ScreenReport: ...
    def inspect(self, candidate: Candidate) -> InspectReport | BuildReport: ...
    def evaluate(self, candidate: Candidate, *, stop: TimingStop | None = None) -> Evaluation: ...


@dataclass
class ToolContext:
    """Every tool call receives it. The tool Finish sets `finished` to (outcome, message)."""

    workspace: Workspace
    session: Session
    files: WorkspaceFiles
    shell: "Shell"
    best: Best
    logs: Path
    finished: tuple[str, str] | None = None
    judge_s: float = 0.0

    @property
    def device_s(self) -> float:
        """Seconds for which this run has held the device: for the judge and for `gpu` commands."""
        return self.judge_s + self.shell.gpu_s
