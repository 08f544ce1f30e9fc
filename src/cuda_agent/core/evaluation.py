"""What the judge finds: the reports of its phases and the evaluation of a candidate. `core.records` exports them."""

from __future__ import annotations

from pydantic import Field, model_validator

from cuda_agent.core.config import Regression, TimingStop
from cuda_agent.core.enums import Device, Phase, Precision, SandboxLevel, Verdict
from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.stack import Stack


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
    each output the share of its integers that aren't eager's, taken for one at least; 0 where it has none.
    `over_budget`: it failed only because an error exceeds its budget, within the published tolerance."""

    kind: str
    seed: int | None = None
    passed: bool
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    candidate_error: float | None = None
    eager_error: float | None = None
    budget: float | None = None
    over_budget: bool = False
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
    #: the time is less than the reference's products take at the datasheet's peak.
    fewer_operations: bool = False
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

    @property
    def latency_us(self) -> float | None:
        """The candidate's time in microseconds if it passed."""
        passed = self.verdict is Verdict.PASSED and self.profile is not None
        return self.profile.candidate.latency_us if passed and self.profile else None

    @property
    def matched_ratio(self) -> float | None:
        """The matched baseline's time / the candidate's if it passed."""
        ratio = self.profile.ratios.get(self.profile.matched) if self.profile else None
        return ratio.value if ratio and self.verdict is Verdict.PASSED else None


class ScreenReport(Record):
    """Candidate-only times of several settings in one build, for a search's own information; never a verdict.
    `latency_us[i]` belongs to `configs[i]`; None where it failed, with the reason in `failures`."""

    configs: tuple[dict[str, int], ...]
    latency_us: tuple[float | None, ...]
    failures: dict[int, str] = Field(default_factory=dict)
    #: a setting found too little of the device's memory.
    out_of_memory: bool = False
