"""One episode: the policy's tokens in, tool calls run, answers as tokens out, an `Episode` at its end."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.agent.best import Best
from cuda_agent.agent.context import Context
from cuda_agent.agent.files import Refusal, WorkspaceFiles
from cuda_agent.agent.shell import Shell, open_shell
from cuda_agent.agent.tools.judged import judging, snapshot
from cuda_agent.agent.tools.registry import ALL, Toolbox
from cuda_agent.agent.trained.dialogue import Dialogue, DialogueSettings, Opening
from cuda_agent.agent.trained.offers import laid_out
from cuda_agent.core.enums import Milestone, RewardBaseline, Verdict
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import Evaluation, Task, ToolCall, ToolResult
from cuda_agent.reward import reward
from cuda_agent.training.environment.judges import Judges, RememberingSession
from cuda_agent.training.episodes import Episode, Generated
from cuda_agent.workspace import layout

#: a workspace of an episode outlives nothing; its files are written as durably as any, which memory makes cheap.
_MEMORY = "/dev/shm"
_NAMES = frozenset(tool.name for tool in ALL)
#: tools after which the candidate is what it was, unless a command runs in the background.
_READING = frozenset({"Read", "Grep", "Glob", "Compile", "Verify", "Profile", "Finish"})


@dataclass(eq=False)
class Rollout:
    """An episode that is being played. In turn: `context` to the policy, `take` what it adds, `act`; until `ended`."""

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
        self._counts = {"calls": 0, "invalid_calls": 0, "repeated_calls": 0, "tool_errors": 0}
        self._seen: set[tuple[str, str, str]] = set()
        self._failed = self._background = False
        self._known: str | None = None
        self._own: tuple[int, ...] = ()

    # ------------------------------------------------------------ life

    def open(self) -> None:
        """Lays out the workspace and the prompt. Raises TaskError, NotCovered, StoreError."""
        where = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="cuda-agent-episode-", dir=where)))
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
        self._context = Context(workspace, self.session, files, shell, Best(run), run / "logs")
        self._tools = Toolbox(self._context)
        options = self.judges.options
        opening = Opening(
            self.task, options.device, options.precision, self.settings.turns, self.session.graph, plans,
            self._tools.schemas(),
        )  # fmt: skip
        self.prompt = self.dialogue.prompt(opening)
        if len(self.prompt) >= self.settings.context_tokens:
            self.ended = self.truncated = self._failed = True

    def close(self) -> None:
        """Removes the workspace and ends its commands."""
        self._stack.close()

    # ------------------------------------------------------------ a turn

    @property
    def context(self) -> list[int]:
        """What the policy reads next: always a continuation of what it read before."""
        return self.prompt + self.response

    @property
    def room(self) -> int:
        """Tokens until the context is full."""
        return self.settings.context_tokens - len(self.prompt) - len(self.response)

    def take(self, generated: Generated) -> None:
        """The policy's own tokens of this turn."""
        own = generated.token_ids[: self.room]
        self.response += own
        self.logs += generated.log_probabilities[: len(own)]
        self.mask += [1] * len(own)
        self._own = own
        self.turns += 1
        if not own or len(own) < len(generated.token_ids):
            self.ended = self.truncated = True

    def act(self) -> None:
        """Runs the calls of this turn and adds the answers. Raises CudaAgentError where this machine fails."""
        if self.ended:
            return
        spoken = self.dialogue.hear(self._own, self.turns)
        results = [self._call(call) for call in spoken.calls]
        self._count_idle(len(spoken.calls))
        if self._context.finished is not None:
            self.ended = True
            return
        left = self.settings.turns - self.turns
        answer = self.dialogue.observe(spoken, results, left)
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
        self._counts["calls"] += 1
        wrong = call.malformed or call.tool not in _NAMES or result.text.startswith("Wrong call")
        self._counts["invalid_calls"] += bool(wrong)
        self._counts["tool_errors"] += not wrong and not result.ok
        self._counts["repeated_calls"] += not wrong and key in self._seen
        self._seen.add(key)
        return result

    def _count_idle(self, calls: int) -> None:
        # A turn without any call counts as an invalid one, so that filters see it.
        self._counts["invalid_calls"] += calls == 0

    def _digest(self) -> str:
        with suppress(UsageError):
            return self._context.workspace.snapshot().digest
        return "?"

    # ------------------------------------------------------------ its end

    def settle(self) -> None:
        """Where no candidate passed, what stands in the workspace is judged, if it wasn't. Raises CudaAgentError."""
        best = self._context.best
        if best.passed or self._failed:
            return
        with suppress(Refusal):
            candidate = snapshot(self._context)
            if best.candidate is None or best.candidate.digest != candidate.digest:
                with judging(self._context):
                    best.offer(candidate, self.session.evaluate(candidate, stop="decided"))

    def fail(self) -> None:
        """The judge failed: the episode has no reward."""
        self.ended = self._failed = True

    def episode(self, *, policy_version: int, seed: int) -> Episode:
        """What was played. Trailing answers are cut: the last token is the policy's own."""
        while self.mask and self.mask[-1] == 0:
            for values in (self.mask, self.response, self.logs):
                values.pop()
        if not self.response:
            # Nothing was said at all (a prompt that fills the context): one token stands for it.
            self.response, self.mask, self.logs = [self.dialogue.stop_id], [1], [0.0]
        best = self._context.best.evaluation if self._context.best.passed else None
        value, milestone = self._paid(best)
        broken = [v.rule for e in self.session.evaluated for v in e.violations]
        return Episode(
            task_key=self.task.key,
            task_name=self.task.name,
            prompt_ids=tuple(self.prompt),
            response_ids=tuple(self.response),
            mask=tuple(self.mask),
            log_probabilities=tuple(self.logs),
            reward=None if self._failed else value,
            milestone=None if self._failed else milestone,
            truncated=self.truncated,
            turns=max(1, self.turns),
            violations=tuple(dict.fromkeys(broken)),
            evaluations=self.session.evaluations,
            memoised=self.session.memoised,
            best_us=latency_us(best),
            ratio=matched_ratio(best),
            judged=tuple((latency_us(e), matched_ratio(e)) for e in self.session.evaluated),
            policy_version=policy_version,
            seed=seed,
            generate_s=self.generate_s,
            judge_s=self._context.judge_s,
            wall_s=time.monotonic() - self._began,
            **self._counts,
        )

    def _paid(self, best: Evaluation | None) -> tuple[float, Milestone]:
        if best is None:
            return -1.0, Milestone.FAILED
        paid = reward(best, self.baseline)
        return float(paid.value), paid.milestone


def latency_us(evaluation: Evaluation | None) -> float | None:
    """Of a candidate that passed."""
    if evaluation is None or evaluation.verdict is not Verdict.PASSED or evaluation.profile is None:
        return None
    return evaluation.profile.candidate.latency_us


def matched_ratio(evaluation: Evaluation | None) -> float | None:
    """The matched baseline's time / the candidate's."""
    if evaluation is None or evaluation.verdict is not Verdict.PASSED or evaluation.profile is None:
        return None
    found = evaluation.profile.ratios.get(evaluation.profile.matched)
    return found.value if found else None
