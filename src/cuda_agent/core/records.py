"""The records that all packages share. They are frozen and validated; units are in field names."""

from typing import Any, Self

from pydantic import Field, model_validator

from cuda_agent.core.enums import Milestone, RewardBaseline
from cuda_agent.core.evaluation import (
    BuildReport,
    CompileReport,
    Evaluation,
    KernelReport,
    KernelTime,
    OutputErrors,
    ProfileReport,
    Ratio,
    ScreenReport,
    Timing,
    TrialReport,
    VerifyReport,
    Violation,
)  # fmt: skip
from cuda_agent.core.hashing import digest_files, digest_text
from cuda_agent.core.plan import KernelPlan
from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.stack import Stack

#: All records that cross a boundary; import them from here.
__all__ = [
    "Budget", "BuildReport", "Candidate", "CompileReport", "Evaluation", "KernelReport", "KernelTime", "OutputErrors",
    "PolicyMove", "ProfileReport", "Ratio", "Replayed", "Resumption", "Reward", "RunManifest", "ScreenReport",
    "Task", "Timing", "ToolCall", "ToolResult", "Trajectory", "TrialReport", "Turn", "VerifyReport", "Violation",
]  # fmt: skip


class Task(StoredRecord):
    """A PyTorch module to make faster, in the KernelBench convention: `Model`, `get_inputs`, `get_init_inputs`."""

    file_name = "task.json"
    name: str
    """Name for people."""
    source: str
    """Python source."""
    origin: str = "file"
    """Where it comes from: a file, a dataset."""
    operators: tuple[str, ...] = ()
    """Names of its operators."""
    atol: float = 1e-2
    """Absolute tolerance."""
    rtol: float = 1e-2
    """Relative tolerance."""
    split: str | None = None
    """The dataset's split."""

    @property
    def key(self) -> str:
        """The content hash of the source and the tolerances."""
        return digest_text(self.source, repr(self.atol), repr(self.rtol))


class Candidate(Record):
    """A snapshot of a workspace's writable files: `model_new.py` and everything under `kernels/`."""

    files: dict[str, str]
    """Path -> text."""

    @property
    def digest(self) -> str:
        return digest_files(self.files)


class Reward(Record):
    """The milestone reward in {-1, 1, 2, 3} (paper, "Reward")."""

    value: int
    """-1, 1, 2 or 3."""
    milestone: Milestone
    """What was reached."""
    baseline: RewardBaseline
    """The baseline that decided."""
    reason: str
    """Why, in one line."""


class ToolCall(Record):
    """A tool call of a policy."""

    id: str
    """Unique in the run."""
    tool: str
    """The tool's name."""
    arguments: dict[str, Any]
    """Its arguments."""
    malformed: str = ""
    """What is wrong with the arguments; such a call is not run."""


class ToolResult(Record):
    """A tool's answer."""

    call_id: str
    """The call."""
    text: str
    """The answer for the policy."""
    ok: bool = True
    """Whether it succeeded."""
    data: dict[str, Any] = Field(default_factory=dict)
    """The same answer as data."""
    candidate_digest: str | None = None
    """The candidate when the call began."""
    duration_s: float = 0.0
    """Time of the call."""

    @property
    def first_line(self) -> str:
        return next((line for line in self.text.splitlines() if line.strip()), "no reason given")


class Budget(Record):
    """The limits of a run and what it has spent."""

    turns_limit: int
    """Most turns."""
    turns_spent: int = 0
    """Turns so far."""
    wall_s: float = 0.0
    """Time so far."""
    judge_s: float = 0.0
    """Time of the judge, which holds the device."""
    tokens: int = 0
    """Tokens so far."""
    cost: float = 0.0
    """Cost so far, in the currency of the price table."""
    wall_limit_s: float | None = None
    """Most time; None: no limit."""
    judge_limit_s: float | None = None
    """Most time of the judge."""
    tokens_limit: int | None = None
    """Most tokens."""
    cost_limit: float | None = None
    """Highest cost."""

    @property
    def turns_left(self) -> int:
        return max(0, self.turns_limit - self.turns_spent)

    @property
    def tokens_left(self) -> int | None:
        return None if self.tokens_limit is None else max(0, self.tokens_limit - self.tokens)

    @property
    def cost_left(self) -> float | None:
        return None if self.cost_limit is None else max(0.0, self.cost_limit - self.cost)

    @property
    def wall_left_s(self) -> float | None:
        return None if self.wall_limit_s is None else max(0.0, self.wall_limit_s - self.wall_s)

    @property
    def judge_left_s(self) -> float | None:
        return None if self.judge_limit_s is None else max(0.0, self.judge_limit_s - self.judge_s)


class PolicyMove(Record):
    """What a policy says and which tools it calls. A move with neither calls nor an observation ends the run."""

    message: str = ""
    """The policy's text."""
    reasoning: str = ""
    """The model's reasoning."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls."""
    observation: str = ""
    """Message to a language model that called no tool."""
    tokens_in: int = 0
    """Tokens of the request."""
    tokens_out: int = 0
    """Tokens of the answer."""
    tokens_cached: int = 0
    """Tokens of the request from a cache."""
    tokens_estimated: bool = False
    """Whether the server did not count tokens."""
    cost: float | None = None
    """Cost of the turn."""
    context_limit: int | None = None
    """Tokens of the request after the server refused the configured context."""
    token_ids: tuple[int, ...] | None = None
    """Tokens of a trained policy."""
    log_probabilities: tuple[float, ...] | None = None
    """Their log probabilities."""
    plan: KernelPlan | None = None
    """The playbook's plan that the turn writes or ends with."""


class Turn(PolicyMove):
    """One step of the loop: the policy's message and calls, and the tools' answers."""

    index: int
    """Its number, from 0."""
    results: tuple[ToolResult, ...] = ()
    """The tools' answers."""
    candidate_digest: str | None = None
    """The candidate after the turn."""
    budget: Budget | None = None
    """The budget at the end of the turn."""
    duration_s: float = 0.0
    """Time of the turn."""


class Trajectory(StoredRecord):
    """A whole run of a policy on a task. Its evaluation is that of the best candidate."""

    file_name = "trajectory.json"
    task_key: str
    """Content hash of the task."""
    task_name: str
    """The task's name."""
    policy: str
    """Name of the policy."""
    turns: tuple[Turn, ...]
    """The turns."""
    budget: Budget
    """Limits and what was spent."""
    outcome: str
    """How the run ended."""
    message: str = ""
    """What the policy said last."""
    best: Candidate | None = None
    """The best candidate."""
    evaluation: Evaluation | None = None
    """The best candidate's evaluation."""
    reward: Reward | None = None
    """Its reward."""
    directory: str | None = None
    """The run directory."""

    @model_validator(mode="after")
    def _best_was_judged(self) -> Self:
        judged = None if self.evaluation is None else self.evaluation.candidate_digest
        if judged is not None and (self.best is None or self.best.digest != judged):
            raise ValueError("the evaluation is that of the best candidate")
        return self


class Replayed(Record):
    """A candidate that was judged again. `recorded_verdict` is that of its last judged call in the run, and
    `recorded_us` is the time of its last profile. `turn` is counted from 1."""

    turn: int
    digest: str
    recorded_verdict: str | None
    recorded_us: float | None
    evaluation: Evaluation

    @property
    def us(self) -> float | None:
        return self.evaluation.latency_us


class Resumption(Record):
    """A resumption of a run after `turns` turns; `changes` are the differences from its start."""

    started: str
    turns: int
    changes: tuple[str, ...] = ()


class RunManifest(StoredRecord):
    """The data to repeat a run: resolved configuration, commit, seeds, stack, digests of its outputs."""

    file_name = "manifest.json"
    command: tuple[str, ...]
    configuration: dict[str, Any]
    version: str
    commit: str | None
    stack: Stack
    started: str
    seeds: tuple[int, ...] = ()
    digests: dict[str, str] = Field(default_factory=dict)
    resumed: tuple[Resumption, ...] = ()
