"""One episode: it takes the policy's tokens, runs tool calls, returns answers as tokens and ends as an `Episode`."""

import os
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.agent.best import Best
from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.files import CallRefused, WorkspaceFiles
from cuda_agent.agent.policy import Brief
from cuda_agent.agent.shell import Shell, open_shell
from cuda_agent.agent.tools.judged import judging, snapshot
from cuda_agent.agent.tools.registry import ALL, WRONG_CALL, Toolbox
from cuda_agent.agent.trained.dialogue import Dialogue, DialogueSettings
from cuda_agent.agent.trained.offers import laid_out
from cuda_agent.agent.trained.sampler import Sampled
from cuda_agent.core.config import Limits
from cuda_agent.core.enums import Milestone, RewardBaseline
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import Task, ToolCall, ToolResult
from cuda_agent.reward import reward
from cuda_agent.training.config import Fault
from cuda_agent.training.environment.judges import Judges, RememberingSession
from cuda_agent.training.episodes import Episode
from cuda_agent.workspace import layout
from cuda_agent.workspace.temporary import temporary_folder

#: folder of workspaces in memory: files are written durably, which is cheap there, and end with the episode.
_MEMORY = Path("/dev/shm")
_NAMES = frozenset(tool.__name__ for tool in ALL)
#: tools that don't change the candidate, unless a command runs in the background.
_READING = frozenset({"Read", "Grep", "Glob", "Compile", "Verify", "Profile", "Finish"})
_INVALID: tuple[Fault, ...] = ("unreadable", "unknown_tool", "wrong_arguments", "no_call")
_REPEATED: dict[str, Fault] = {
    **dict.fromkeys(("Read", "Grep", "Glob"), "repeated_reading"),
    **dict.fromkeys(("Compile", "Verify", "Profile", "Inspect"), "repeated_judging"),
}


@dataclass(eq=False)
class Rollout:
    """An episode in play. Until `ended`: the policy reads `context`, `take` adds its tokens, `act` runs its calls."""

    task: Task
    dialogue: Dialogue
    settings: DialogueSettings
    judges: Judges
    baseline: RewardBaseline = RewardBaseline.MATCHED
    ended: bool = False
    truncated: bool = False
    generate_s: float = 0.0
    prompt: list[int] = field(default_factory=list)
    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    turns: int = 0

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._stack = ExitStack()
        self._calls = self._tool_errors = 0
        self._faults: Counter[Fault] = Counter()
        self._seen: set[tuple[str, str, str]] = set()
        self._failed = self._background = False
        self._known: str | None = None
        self._own: tuple[int, ...] = ()

    def open(self) -> None:
        """Lays out the workspace and the prompt. Raises TaskError, NotCovered and StoreError."""
        where = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        folder = self._stack.enter_context(temporary_folder("episode", where))
        plans = self.judges.offers(self.task) if self.dialogue.offers_plans else ()
        workspace = layout.create(self.task, folder / "workspace", options=self.judges.options)
        for path, text in laid_out(plans).items():
            (workspace.directory / path).parent.mkdir(parents=True, exist_ok=True)
            (workspace.directory / path).write_text(text)
        run = folder / "run"
        (run / "logs").mkdir(parents=True)
        self.session: RememberingSession = self.judges.session(self.task)
        files = WorkspaceFiles(workspace.directory, run / "logs")
        shell: Shell = self._stack.enter_context(open_shell(workspace, hidden=(run, self.judges.folder)))
        self._context = ToolContext(workspace, self.session, files, shell, Best(run), run / "logs")
        self._tools = Toolbox(self._context)
        options = self.judges.options
        limits = Limits(turns=self.settings.turns)
        brief = Brief(self.task, options.device, options.precision, limits, self._tools.schemas(), self.session.graph)
        self._texts = self.dialogue.about(brief, plans)
        self.prompt = self.dialogue.encode_prompt(self._texts.messages())
        if len(self.prompt) >= self.settings.context_tokens:
            self.ended = self.truncated = self._failed = True

    def close(self) -> None:
        """Removes the workspace and ends its commands."""
        self._stack.close()

    @property
    def context(self) -> list[int]:
        """What the policy reads next. It always continues what it read before."""
        return self.prompt + self.response

    @property
    def room(self) -> int:
        """The number of tokens until the context is full."""
        return self.settings.context_tokens - len(self.prompt) - len(self.response)

    def take(self, sampled: Sampled) -> None:
        """Adds the policy's tokens of this turn."""
        own = sampled.token_ids[: self.room]
        self.response += own
        self.logs += sampled.log_probabilities[: len(own)]
        self.mask += [1] * len(own)
        self._own = own
        self.turns += 1
        if not own or len(own) < len(sampled.token_ids):
            self.ended = self.truncated = True

    def act(self) -> None:
        """Runs the calls of this turn and adds the answers. Raises CudaAgentError when this machine fails."""
        if self.ended:
            return
        parsed = self._texts.parse(self.dialogue.decode_turn(self._own), self.turns)
        results = [self._call(call) for call in parsed.calls]
        if not parsed.calls:
            self._faults["no_call"] += 1
        if self._context.finished is not None:
            self.ended = True
            return
        left = self.settings.turns - self.turns
        answer = self.dialogue.encode_observation(self._texts.observation(parsed.calls, results, left))
        if left <= 0 or self.room <= len(answer):
            self.ended = self.truncated = True
            return
        self.response += answer
        self.logs += [0.0] * len(answer)
        self.mask += [0] * len(answer)

    def _call(self, call: ToolCall) -> ToolResult:
        digest = self._known or self._digest()
        key = (call.tool, repr(sorted(call.arguments.items())), digest)
        self._background |= bool(call.arguments.get("background"))
        self._known = digest if call.tool in _READING and not self._background else None
        result = self._tools.call(call)
        self._calls += 1
        fault = _invalid(call, result)
        if fault is None:
            self._tool_errors += not result.ok
            fault = _REPEATED.get(call.tool, "repeated_other") if key in self._seen else None
        if fault is not None:
            self._faults[fault] += 1
        self._seen.add(key)
        return result

    def _digest(self) -> str:
        with suppress(UsageError):
            return self._context.workspace.snapshot().digest
        return "?"

    def settle(self) -> None:
        """If no candidate passed, judges the workspace as it stands, unless that was done. Raises CudaAgentError."""
        best = self._context.best
        if best.passed or self._failed:
            return
        with suppress(CallRefused):
            candidate = snapshot(self._context)
            if best.candidate is None or best.candidate.digest != candidate.digest:
                with judging(self._context):
                    best.offer(candidate, self.session.evaluate(candidate, stop="decided"))

    def fail(self) -> None:
        """The judge failed: the episode has no reward."""
        self.ended = self._failed = True

    def episode(self, *, policy_version: int, seed: int) -> Episode:
        """Returns the episode. Trailing answers are cut, so the last token is the policy's own."""
        while self.mask and self.mask[-1] == 0:
            for values in (self.mask, self.response, self.logs):
                values.pop()
        if not self.response:
            # The prompt filled the context, so the policy said nothing: one token stands for it.
            self.response, self.mask, self.logs = [self.dialogue.stop_id], [1], [0.0]
        best = self._context.best.evaluation if self._context.best.passed else None
        paid = reward(best, self.baseline) if best is not None else None
        broken = [v.rule for e in self.session.evaluated for v in e.violations]
        return Episode(
            task_key=self.task.key,
            task_name=self.task.name,
            prompt_ids=tuple(self.prompt),
            response_ids=tuple(self.response),
            mask=tuple(self.mask),
            log_probabilities=tuple(self.logs),
            reward=None if self._failed else float(paid.value) if paid is not None else -1.0,
            milestone=None if self._failed else paid.milestone if paid is not None else Milestone.FAILED,
            truncated=self.truncated,
            turns=max(1, self.turns),
            violations=tuple(dict.fromkeys(broken)),
            evaluations=self.session.evaluations,
            memoised=self.session.memoised,
            best_us=best.latency_us if best is not None else None,
            ratio=best.matched_ratio if best is not None else None,
            judged=tuple((e.latency_us, e.matched_ratio) for e in self.session.evaluated),
            policy_version=policy_version,
            seed=seed,
            generate_s=self.generate_s,
            judge_s=self._context.judge_s,
            wall_s=time.monotonic() - self._began,
            calls=self._calls,
            invalid_calls=sum(self._faults[fault] for fault in _INVALID),
            repeated_calls=self._faults.total() - sum(self._faults[fault] for fault in _INVALID),
            tool_errors=self._tool_errors,
            faults=dict(self._faults),
        )


def _invalid(call: ToolCall, result: ToolResult) -> Fault | None:
    if call.malformed:
        return "unreadable"
    if call.tool not in _NAMES:
        return "unknown_tool"
    return "wrong_arguments" if result.data.get(WRONG_CALL) else None
