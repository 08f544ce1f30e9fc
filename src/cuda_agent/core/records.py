"""The few nouns that everything passes on. Frozen; impossible ones can't be built; units are in field names."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from cuda_agent.core.config import Regression, TimingStop
from cuda_agent.core.enums import Device, Milestone, Phase, Precision, RewardBaseline, SandboxLevel, Verdict
from cuda_agent.core.hashing import digest_files, digest_text
from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.stack import Stack

# ---------------------------------------------------------------- task and candidate


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
        """Content hash of the source and the tolerances."""
        return digest_text(self.source, repr(self.atol), repr(self.rtol))


class Candidate(Record):
    """Snapshot of a workspace's writable files: `model_new.py` and everything under `kernels/`, path -> text."""

    files: dict[str, str]

    @property
    def digest(self) -> str:
        return digest_files(self.files)


# ---------------------------------------------------------------- what the judge found


class Violation(Record):
    """A rule that was broken. `layer` says which guard saw it (syntax, source, symbols, dispatch, output, timing…)."""

    rule: str
    layer: str
    detail: str


class BuildReport(Record):
    """Compilation of one snapshot. `library_digest` ties the loaded library to `candidate_digest`."""

    succeeded: bool
    candidate_digest: str
    library_digest: str | None = None
    duration_s: float
    cached_objects: int = 0
    compiled_objects: int = 0
    log: str = ""

    @model_validator(mode="after")
    def _library_means_success(self) -> BuildReport:
        if self.succeeded != (self.library_digest is not None):
            raise ValueError("a library exists exactly when the build succeeded")
        return self


class TrialReport(Record):
    """One verification trial against the reference and the oracle. Relative errors are L2, dimensionless. `ties`: of
    each output the share of its integers that aren't eager's, taken for one at least; 0 where it has none."""

    kind: str
    seed: int | None = None
    passed: bool
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    candidate_error: float | None = None
    eager_error: float | None = None
    budget: float | None = None
    ties: tuple[float, ...] = ()
    reason: str = ""


class VerifyReport(Record):
    """All trials. `oracle` is `float64`, or `float32` where a float32 operator would not be upcast."""

    passed: bool
    trials: tuple[TrialReport, ...]
    oracle: str = "float64"
    frozen: bool = False
    derive_ms: float | None = None
    dropped_variants: tuple[str, ...] = ()
    duration_s: float = 0.0
    #: of that: `reference`, `candidate`, `comparison`.
    parts_s: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _passed_means_all(self) -> VerifyReport:
        if self.passed != (bool(self.trials) and all(trial.passed for trial in self.trials)):
            raise ValueError("verification passes exactly when every trial passed")
        return self

    @property
    def worst_error(self) -> float | None:
        return max((t.candidate_error for t in self.trials if t.candidate_error is not None), default=None)


class Timing(Record):
    """Times of one program, in microseconds. `latency_us` pays: the slower of the device events' median and the lower
    95 % bound of the judge's own clock. `low`/`high` bound its 95 % interval. `unexplained_us`: what the judge's clock
    typically finds beyond the events of a call, and `waited_us` how much of it the worker waited for the call's end."""

    latency_us: float = Field(gt=0)
    low_us: float = Field(gt=0)
    high_us: float = Field(gt=0)
    event_us: float = Field(gt=0)
    witness_low_us: float | None = None
    unexplained_us: float | None = None
    waited_us: float | None = None
    queued_us: float | None = None
    busy_us: float | None = None
    repetitions: int = Field(ge=1)
    samples_us: tuple[float, ...] = ()
    peak_memory_bytes: int | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Timing:
        if not self.low_us <= self.latency_us <= self.high_us:
            raise ValueError("the interval holds the time")
        return self


class Ratio(Record):
    """Baseline time / candidate time (above 1: the candidate is faster), with its 95 % interval over paired rounds."""

    baseline: str
    value: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)


class CompileReport(Record):
    """What `torch.compile` made of a form of the task, as its worker's TorchDynamo counted it. `graphs` 0: it runs in
    eager. `fallbacks`: frames that are left to eager; `graphs_refused`: graphs that CUDA graphs couldn't capture.
    `compile_s`: until it was warm, from whatever was in the compiler's cache."""

    graphs: int = Field(ge=0)
    breaks: int = Field(default=0, ge=0)
    reasons: tuple[str, ...] = ()
    fallbacks: int = Field(default=0, ge=0)
    graphs_refused: int = Field(default=0, ge=0)
    compile_s: float = Field(default=0.0, ge=0)


class ProfileReport(Record):
    """Times of the candidate and the baselines, measured side by side. Keys of `baselines`: `eager`, `compile`
    (PyTorch's default flags), and `eager_<precision>`, `compile_<precision>`, `graphs_<precision>` at the policy."""

    candidate: Timing
    baselines: dict[str, Timing]
    ratios: dict[str, Ratio]
    matched: str
    rounds: int
    checked_outputs: int
    #: the rule by which the rounds ended: every ratio known to ±1 %, or plainly on one side of a milestone.
    stop: TimingStop = "settled"
    failed_baselines: dict[str, str] = Field(default_factory=dict)
    #: of each compiled baseline.
    compiled: dict[str, CompileReport] = Field(default_factory=dict)
    clocks: dict[str, float] = Field(default_factory=dict)
    throttle_reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    duration_s: float = 0.0
    #: of that: `weights`, `memory`, `warm` before anything is timed, `plan`, in the rounds `inputs`, `bursts` and
    #: `checks`, and `after`.
    parts_s: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _matched_exists(self) -> ProfileReport:
        if self.matched not in self.baselines:
            raise ValueError(f"the matched baseline {self.matched!r} was not timed")
        return self


class KernelTime(Record):
    """All runs of one GPU kernel in a call. `name`: its mangled symbol. `origin`: own, library, torch, copy (of memory,
    fills and torch's copies among them) or unknown."""

    name: str
    origin: str
    calls: int = Field(ge=1)
    us: float = Field(ge=0)


class KernelReport(Record):
    """GPU time of one verified call by what ran, as its worker's CUPTI recorded it; the longest kernels by name. In a
    benchmark others may compute beside that call: what counts is which kernels there are, and their shares."""

    own_us: float
    library_us: float
    torch_us: float
    copy_us: float
    unknown_us: float
    kernels: tuple[KernelTime, ...] = ()

    @property
    def own_share(self) -> float:
        """The own kernels' share of all GPU time."""
        total = self.own_us + self.library_us + self.torch_us + self.copy_us + self.unknown_us
        return self.own_us / total if total else 0.0


class Evaluation(StoredRecord):
    """The judge's word on one candidate. A profile exists only when verification passed without violation.

    `operators`: ATen operators that the dispatcher saw in `forward` while it was verified, with counts. `kernels`: what
    ran on the GPU in one more verified call. `notes`: what a reader should know and no rule forbids. `failing`: the
    trial that the candidate failed or died on, to be tried again; the judge itself draws no seed twice.
    """

    file_name = "evaluation.json"
    task_key: str
    candidate_digest: str
    device: Device
    precision: Precision
    verdict: Verdict
    phase: Phase
    reason: str = ""
    log_tail: str = ""
    build: BuildReport | None = None
    verify: VerifyReport | None = None
    profile: ProfileReport | None = None
    violations: tuple[Violation, ...] = ()
    operators: dict[str, int] = Field(default_factory=dict)
    kernels: KernelReport | None = None
    notes: tuple[str, ...] = ()
    failing: Regression | None = None
    #: what it is, where it is no CUDA extension and only judged beside ours (`triton`): never promoted nor exported.
    comparison: str | None = None
    sandbox: SandboxLevel
    stack: Stack
    durations_s: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _possible(self) -> Evaluation:
        if self.profile is not None and (self.verify is None or not self.verify.passed):
            raise ValueError("a profile exists only when verification passed")
        if self.verdict is Verdict.PASSED and (self.profile is None or self.violations):
            raise ValueError("PASSED needs a profile and no violation")
        if self.verify is not None and not self.comparison and (self.build is None or not self.build.succeeded):
            raise ValueError("verification needs a successful build")
        return self


class ScreenReport(Record):
    """Candidate-only times of several settings in one build, for a search's own information; never a verdict.
    `latency_us[i]` belongs to `configs[i]`; None where it failed, with the reason in `failures`."""

    configs: tuple[dict[str, int], ...]
    latency_us: tuple[float | None, ...]
    failures: dict[int, str] = Field(default_factory=dict)
    #: a setting found too little of the device's memory.
    out_of_memory: bool = False


# ---------------------------------------------------------------- reward and trajectory


class Reward(Record):
    """Milestone reward in {-1, 1, 2, 3} (paper, "Reward")."""

    value: int
    milestone: Milestone
    baseline: RewardBaseline
    reason: str


class ToolCall(Record):
    """A call that a policy asks for. `malformed` says what is wrong with its arguments as they came; then it isn't
    run."""

    id: str
    tool: str
    arguments: dict[str, Any]
    malformed: str = ""


class ToolResult(Record):
    """What a tool answered: `text` is what the policy reads, `data` the structured form of it. `candidate_digest`: the
    candidate as it stood when the call began, so what a tool of the judge judged."""

    call_id: str
    text: str
    ok: bool = True
    data: dict[str, Any] = Field(default_factory=dict)
    candidate_digest: str | None = None
    duration_s: float = 0.0


class Budget(Record):
    """What a run may spend (None: as much as it takes) and has spent. `judge_s` is the time of the judge, which holds
    the device; `cost` is in the currency of the price table."""

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
    """One step of the loop: what the policy said and asked, and what the tools answered. `observation` is what a
    language model is told where it called nothing. `budget` is as it stood when the turn ended, so that everything a
    policy was told can be told again from the turns alone."""

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
    #: tokens that the request was composed for, where the server had refused one for the configured context.
    context_limit: int | None = None
    token_ids: tuple[int, ...] | None = None
    log_probabilities: tuple[float, ...] | None = None
    budget: Budget | None = None
    duration_s: float = 0.0


class Trajectory(StoredRecord):
    """A whole run of a policy on a task; its evaluation is that of the best candidate."""

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
    """One candidate: what the run recorded of it (the verdict of its last judged call, the time of its last profile),
    and how it was judged now. `turn` is counted from 1."""

    turn: int
    digest: str
    recorded_verdict: str | None
    recorded_us: float | None
    evaluation: Evaluation

    @property
    def us(self) -> float | None:
        profile = self.evaluation.profile
        passed = profile is not None and self.evaluation.verdict is Verdict.PASSED
        return profile.candidate.latency_us if passed and profile is not None else None


class Resumption(Record):
    """A run taken up again after `turns` turns; `changes` says what differed from when it was begun."""

    started: str
    turns: int
    changes: tuple[str, ...] = ()


class RunManifest(StoredRecord):
    """What is needed to run it again: resolved configuration, commit, seeds, stack, digests of what was made."""

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
