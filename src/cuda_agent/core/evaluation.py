"""The reports of the judge's phases and the evaluation of a candidate. `core.records` exports them."""

from __future__ import annotations

from pydantic import Field, model_validator

from cuda_agent.core.config import Regression, TimingStop
from cuda_agent.core.enums import Device, Phase, Precision, SandboxLevel, Verdict
from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.stack import Stack


class Violation(Record):
    """A broken rule. `layer` is the guard that saw it (syntax, source, symbols, dispatch, output, timing…)."""

    rule: str
    layer: str
    detail: str


class BuildReport(Record):
    """The compilation of one snapshot. `library_digest` ties the loaded library to `candidate_digest`."""

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
    """One verification trial against the reference and the oracle. Relative errors are L2, dimensionless. `ties` has
    for each output the share of its integers that differ from eager's, counted as one at least; it is 0 for an output
    without integers. `over_budget` means that the trial failed only because an error exceeds its budget, within the
    published tolerance."""

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
    """All trials. `oracle` is `float64`, or `float32` where a float32 operator could not be upcast."""

    passed: bool
    trials: tuple[TrialReport, ...]
    oracle: str = "float64"
    frozen: bool = False
    derive_ms: float | None = None
    dropped_variants: tuple[str, ...] = ()
    duration_s: float = 0.0
    #: The parts of `duration_s`: `reference`, `candidate`, `comparison`.
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
    """The times of one program, in microseconds. `latency_us` is rewarded: the slower of the device events' median and
    the lower 95 % bound of the judge's clock. `low_us` and `high_us` are its 95 % interval. `unexplained_us` is the
    typical time of the judge's clock beyond the events of a call, and `waited_us` is the part of it in which the worker
    waited for the call's end."""

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
    """Baseline time / candidate time (above 1 the candidate is faster), with its 95 % interval over paired rounds."""

    baseline: str
    value: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)


class CompileReport(Record):
    """The compilation of a form of the task by `torch.compile`, counted by TorchDynamo in its worker. With 0 `graphs`
    the form runs in eager. `fallbacks` counts frames that run in eager, and `graphs_refused` counts graphs that CUDA
    graphs couldn't capture. `compile_s` is the time until it was warm, with the compiler's cache as it was."""

    graphs: int = Field(ge=0)
    breaks: int = Field(default=0, ge=0)
    reasons: tuple[str, ...] = ()
    fallbacks: int = Field(default=0, ge=0)
    graphs_refused: int = Field(default=0, ge=0)
    compile_s: float = Field(default=0.0, ge=0)


class ProfileReport(Record):
    """The times of the candidate and the baselines, measured side by side. The keys of `baselines` are `eager`,
    `compile` (PyTorch's default flags), and `eager_<precision>`, `compile_<precision>`, `graphs_<precision>` at the
    policy."""

    candidate: Timing
    baselines: dict[str, Timing]
    ratios: dict[str, Ratio]
    matched: str
    rounds: int
    checked_outputs: int
    #: The rule that ended the rounds; see `JudgeOptions.timing_stop`.
    stop: TimingStop = "settled"
    failed_baselines: dict[str, str] = Field(default_factory=dict)
    #: A compiled baseline -> its compilation.
    compiled: dict[str, CompileReport] = Field(default_factory=dict)
    clocks: dict[str, float] = Field(default_factory=dict)
    throttle_reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    #: Whether the time is less than the reference's products take at the datasheet's peak.
    fewer_operations: bool = False
    duration_s: float = 0.0
    #: The parts of `duration_s`: `weights`, `memory` and `warm` before timing, `plan`, in the rounds `inputs`, `bursts`
    #: and `checks`, and `after`.
    parts_s: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _matched_exists(self) -> ProfileReport:
        if self.matched not in self.baselines:
            raise ValueError(f"the matched baseline {self.matched!r} was not timed")
        return self


class KernelTime(Record):
    """All runs of one GPU kernel in a call. `name` is its mangled symbol. `origin` is own, library, torch, copy (copies
    of memory, fills and torch's copies) or unknown."""

    name: str
    origin: str
    calls: int = Field(ge=1)
    us: float = Field(ge=0)


class KernelReport(Record):
    """The GPU time of one verified call by kernel, recorded by CUPTI in the worker; `kernels` has the longest ones. In
    a benchmark other tasks may compute beside that call, so only the kernels and their shares are meaningful."""

    own_us: float
    library_us: float
    torch_us: float
    copy_us: float
    unknown_us: float
    kernels: tuple[KernelTime, ...] = ()

    @property
    def own_share(self) -> float:
        """The share of the candidate's own kernels in all GPU time."""
        total = self.own_us + self.library_us + self.torch_us + self.copy_us + self.unknown_us
        return self.own_us / total if total else 0.0


class Evaluation(StoredRecord):
    """The judge's evaluation of one candidate. A profile exists only when verification passed without violation.

    `operators` counts the ATen operators that the dispatcher saw in `forward` during verification. `kernels` are the
    GPU kernels of one more verified call. `notes` are remarks for a reader that break no rule. `failing` is the trial
    that the candidate failed or crashed on, to be tried again; the judge itself never uses a seed twice.
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
    #: The kind of a candidate that is no CUDA extension and is judged only as a comparison (`triton`). It is never
    #: promoted or exported.
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
    """The candidate's times with several settings in one build. They inform a search and are no verdict.
    `latency_us[i]` belongs to `configs[i]`; it is None where the setting failed, and `failures` has the reason."""

    configs: tuple[dict[str, int], ...]
    latency_us: tuple[float | None, ...]
    failures: dict[int, str] = Field(default_factory=dict)
    #: Whether a setting failed for lack of device memory.
    out_of_memory: bool = False
