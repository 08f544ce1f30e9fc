"""The records that all packages share. They are frozen and validated; units are in field names."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from cuda_agent.core.enums import Milestone, RewardBaseline
from cuda_agent.core.evaluation import (
    BuildReport,
    CompileReport,
    Evaluation,
    KernelReport,
    KernelTime,
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
    "Budget", "BuildReport", "Candidate", "CompileReport", "Evaluation", "KernelReport", "KernelTime",
    "ProfileReport", "Ratio", "Replayed", "Resumption", "Reward", "RunManifest", "ScreenReport", "Task", "Timing",
    "ToolCall", "ToolResult", "Trajectory", "TrialReport", "Turn", "VerifyReport", "Violation",
]  # fmt: skip


class Task(StoredRecord):
    """A PyTorch module to make faster, in the KernelBench convention: `Model`, `get_inputs`, `get_init_inputs`."""

    file_name = "task.json"
    name: str
    source: str
    origin: str = "file"
    operators: tuple[str, ...] = ()
    atol: float = 1e-2
    rtol: float = 1e-2
    split: str | None = None

    @property
    def key(self) -> str:
        """The content hash of the source and the tolerances."""
        return digest_text(self.source, repr(self.atol), repr(self.rtol))


class Candidate(Record):
    """A snapshot of a workspace's writable files: `model_new.py` and everything under `kernels/`, path -> text."""

    files: dict[str, str]

    @property
    def digest(self) -> str:
        return digest_files(self.files)


class Reward(Record):
    """The milestone reward in {-1, 1, 2, 3} (paper, "Reward")."""

    value: int
    milestone: Milestone
    baseline: RewardBaseline
    reason: str


class ToolCall(Record):
    """A tool call of a policy. `malformed` says what is wrong with its arguments; such a call isn't run."""

    id: str
    tool: str
    arguments: dict[str, Any]
    malformed: str = ""


class ToolResult(Record):
    """A tool's answer: `text` for the policy, and `data` as its structured form. `candidate_digest` is the candidate
    when the call began, which is the candidate that a judge's tool judged."""

    call_id: str
    text: str
    ok: bool = True
    data: dict[str, Any] = Field(default_factory=dict)
    candidate_digest: str | None = None
    duration_s: float = 0.0

    @property
    def first_line(self) -> str:
        return next((line for line in self.text.splitlines() if line.strip()), "no reason given")


class Budget(Record):
    """The limits of a run (None is no limit) and what it has spent. `judge_s` is the time of the judge, which holds the
    device; `cost` is in the currency of the price table."""

    turns_limit: int
    turns_spent: int = 0
    wall_s: float = 0.0
    judge_s: float = 0.0
    tokens: int = 0
    cost: float = 0.0
    wall_limit_s: float | None = None
    judge_limit_s: float | None = None
    tokens_limit: int | None = None
    cost_limit: float | None = None

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


class Turn(Record):
    """One step of the loop: the policy's message and calls, and the tools' answers. `observation` is the message to a
    language model that called no tool. `budget` is the budget at the end of the turn, so that every prompt can be
    composed again from the turns alone."""

    index: int
    message: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    observation: str = ""
    candidate_digest: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    tokens_estimated: bool = False
    cost: float | None = None
    #: The tokens for which the request was composed, where the server had refused the configured context.
    context_limit: int | None = None
    token_ids: tuple[int, ...] | None = None
    log_probabilities: tuple[float, ...] | None = None
    budget: Budget | None = None
    #: The playbook's plan that this turn writes or ends with.
    plan: KernelPlan | None = None
    duration_s: float = 0.0


class Trajectory(StoredRecord):
    """A whole run of a policy on a task. Its evaluation is that of the best candidate."""

    file_name = "trajectory.json"
    task_key: str
    task_name: str
    policy: str
    turns: tuple[Turn, ...]
    budget: Budget
    outcome: str
    message: str = ""
    best: Candidate | None = None
    evaluation: Evaluation | None = None
    reward: Reward | None = None
    directory: str | None = None

    @model_validator(mode="after")
    def _best_was_judged(self) -> Trajectory:
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
