"""The reports of the judge's phases and the evaluation of a candidate. `core.records` exports them."""

from typing import Any, Self

from pydantic import Field, model_validator

from cuda_agent.core.baselines import MATCHED
from cuda_agent.core.config import Regression, TimingStop
from cuda_agent.core.enums import Device, OracleWay, Phase, Precision, SandboxLevel, Signal, Verdict
from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.stack import Stack


class Violation(Record):
    """A broken rule."""

    rule: str
    """The broken rule."""
    layer: str
    """The guard that saw it: syntax, source, symbols, dispatch, output, timing…"""
    detail: str
    """What was seen, in one line."""


class BuildReport(Record):
    """The compilation of one snapshot."""

    succeeded: bool
    """Whether there is a library."""
    candidate_digest: str
    """The compiled candidate."""
    library_digest: str | None = None
    """Ties the loaded library to the candidate."""
    duration_s: float
    """Time of the build."""
    cached_objects: int = 0
    """Object files from the cache."""
    compiled_objects: int = 0
    """Object files that were compiled."""
    log: str = ""
    """The compilers' messages."""

    @model_validator(mode="after")
    def _library_means_success(self) -> Self:
        if self.succeeded != (self.library_digest is not None):
            raise ValueError("a library exists exactly when the build succeeded")
        return self


class OutputErrors(Record):
    """The errors of one output in a trial."""

    candidate_error: float = 0.0
    """L2 error of the candidate, relative to the oracle's norm."""
    eager_error: float = 0.0
    """The same error of eager."""
    max_abs_error: float = 0.0
    """Largest difference from eager."""
    apart: float = 0.0
    """Share of values beyond the published tolerance; of integers, that differ from eager's, at least one."""


class TrialReport(Record):
    """One verification trial against the reference and the oracle."""

    kind: str
    """What was tried: fresh inputs, a variant of them, other weights…"""
    seed: int | None = None
    """Seed of the inputs."""
    passed: bool
    """Whether the outputs are right."""
    max_abs_error: float | None = None
    """Largest difference from eager."""
    max_rel_error: float | None = None
    """The same, relative."""
    candidate_error: float | None = None
    """That of the output nearest its budget."""
    eager_error: float | None = None
    """The same of eager."""
    budget: float | None = None
    """The largest allowed `candidate_error`."""
    loose: bool = False
    """Eager's error lifts `budget` far above the type's rounding."""
    over_budget: bool = False
    """The only fault is an error above the budget, within the published tolerance."""
    outputs: tuple[OutputErrors, ...] = ()
    """Each output's errors."""
    reason: str = ""
    """Why it failed."""

    @model_validator(mode="before")
    @classmethod
    def _without_shares(cls, data: Any) -> Any:
        """Reads reports from before `outputs`."""
        return {name: value for name, value in data.items() if name not in ("apart", "ties")}


class VerifyReport(Record):
    """The verification of a candidate."""

    passed: bool
    """Whether all trials passed."""
    trials: tuple[TrialReport, ...]
    """The trials in order."""
    oracle: str = "float64"
    """`float64`, or `float32` where a float32 operator could not be upcast."""
    oracle_way: OracleWay = OracleWay.WHOLE
    """How the oracle computed: `whole`, or for a comparison by pieces in `slices`, `held` or made by the `host`."""
    frozen: bool = False
    """Whether the candidate derives weights when they are loaded."""
    derive_ms: float | None = None
    """Time of deriving them."""
    dropped_variants: tuple[str, ...] = ()
    """Variants of the inputs that the task refuses."""
    duration_s: float = 0.0
    """Time of the verification."""
    parts_s: dict[str, float] = Field(default_factory=dict)
    """Its parts: `reference`, `candidate`, `comparison`."""

    @model_validator(mode="after")
    def _passed_means_all(self) -> Self:
        if self.passed != (bool(self.trials) and all(trial.passed for trial in self.trials)):
            raise ValueError("verification passes exactly when every trial passed")
        return self

    @property
    def worst_error(self) -> float | None:
        return max((t.candidate_error for t in self.trials if t.candidate_error is not None), default=None)


class Timing(Record):
    """The times of one program."""

    latency_us: float = Field(gt=0)
    """The rewarded time of a call: the slower of the device events' median and the lower 95 % bound of the judge's
    clock."""
    low_us: float = Field(gt=0)
    """Lower end of its 95 % interval."""
    high_us: float = Field(gt=0)
    """Upper end."""
    event_us: float = Field(gt=0)
    """Median of the device's events."""
    witness_low_us: float | None = None
    """Lower 95 % bound of the judge's clock."""
    unexplained_us: float | None = None
    """Typical time of the judge's clock beyond the events of a call."""
    waited_us: float | None = None
    """The part of it in which the worker waited for the call's end."""
    queued_us: float | None = None
    """Cost of one more call in a full queue."""
    busy_us: float | None = None
    """Time in which the GPU computes."""
    repetitions: int = Field(ge=1)
    """Timed calls."""
    samples_us: tuple[float, ...] = ()
    """The time of each call, in order."""
    peak_memory_bytes: int | None = None
    """Peak of device memory."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low_us <= self.latency_us <= self.high_us:
            raise ValueError("the interval includes the time")
        return self


class Ratio(Record):
    """A speed-up over a baseline."""

    baseline: str
    """Name of the baseline."""
    value: float = Field(gt=0)
    """Baseline time / candidate time; above 1 the candidate is faster."""
    low: float = Field(gt=0)
    """Lower end of its 95 % interval over paired rounds."""
    high: float = Field(gt=0)
    """Upper end."""


class CompileReport(Record):
    """The compilation of a form of the task by `torch.compile`, counted by TorchDynamo."""

    graphs: int = Field(ge=0)
    """Graphs that TorchDynamo captured; with 0 the form runs in eager."""
    breaks: int = Field(default=0, ge=0)
    """Graph breaks."""
    reasons: tuple[str, ...] = ()
    """Reasons of the breaks."""
    fallbacks: int = Field(default=0, ge=0)
    """Frames that run in eager."""
    graphs_refused: int = Field(default=0, ge=0)
    """Graphs that CUDA graphs couldn't capture."""
    compile_s: float = Field(default=0.0, ge=0)
    """Time until it was warm."""


class ProfileReport(Record):
    """The times of the candidate and the baselines, measured side by side."""

    candidate: Timing
    """The candidate's times."""
    baselines: dict[str, Timing]
    """Times of `eager`, `compile` (default flags), and `eager_<precision>`, `compile_<precision>`, `graphs_<precision>`
    at the policy."""
    ratios: dict[str, Ratio]
    """Ratios to the baselines."""
    matched: str
    """The fastest baseline at the precision policy."""
    rounds: int
    """Rounds of paired bursts."""
    checked_outputs: int
    """Outputs of timed calls that were compared."""
    stop: TimingStop = "settled"
    """The rule that ended the rounds."""
    failed_baselines: dict[str, str] = Field(default_factory=dict)
    """Baselines that were left out, with the reason."""
    compiled: dict[str, CompileReport] = Field(default_factory=dict)
    """Compilations of the compiled baselines."""
    clocks: dict[str, float] = Field(default_factory=dict)
    """The GPU's clocks meanwhile, in MHz."""
    throttle_reasons: tuple[str, ...] = ()
    """Why the GPU lowered its clocks."""
    notes: tuple[str, ...] = ()
    """Remarks for a reader."""
    fewer_operations: bool = False
    """Whether the time is less than the reference's products take at the datasheet's peak."""
    duration_s: float = 0.0
    """Time of the profile."""
    parts_s: dict[str, float] = Field(default_factory=dict)
    """Its parts: `weights`, `memory`, `warm`, `plan`, in the rounds `inputs`, `bursts`, `checks`, and `after`."""

    @model_validator(mode="after")
    def _matched_exists(self) -> Self:
        if self.matched not in self.baselines:
            raise ValueError(f"the matched baseline {self.matched!r} was not timed")
        return self

    def ratio(self, baseline: str) -> Ratio | None:
        """Returns the speed-up over a baseline, or over the fastest one at the policy (`matched`). None where the
        baseline has no time."""
        return self.ratios.get(self.matched if baseline == MATCHED else baseline)

    def timing(self, baseline: str) -> Timing | None:
        """Returns the times of a baseline in the same way."""
        return self.baselines.get(self.matched if baseline == MATCHED else baseline)


class KernelTime(Record):
    """All runs of one GPU kernel in a call."""

    name: str
    """Mangled symbol."""
    origin: str
    """own, library, torch, copy (memory copies and fills) or unknown."""
    calls: int = Field(ge=1)
    """Launches in one call."""
    us: float = Field(ge=0)
    """Time of all launches."""


class KernelReport(Record):
    """The GPU time of one verified call by kernel, recorded by CUPTI. Other tasks may run beside it, so only the
    kernels and their shares are meaningful."""

    own_us: float
    """The candidate's kernels."""
    library_us: float
    """NVIDIA's libraries."""
    torch_us: float
    """torch's kernels."""
    copy_us: float
    """Copies and fills of memory."""
    unknown_us: float
    """Other kernels."""
    kernels: tuple[KernelTime, ...] = ()
    """The longest kernels."""

    @property
    def own_share(self) -> float:
        """The share of the candidate's own kernels in all GPU time."""
        total = self.own_us + self.library_us + self.torch_us + self.copy_us + self.unknown_us
        return self.own_us / total if total else 0.0


class Evaluation(StoredRecord):
    """The judge's evaluation of one candidate."""

    file_name = "evaluation.json"
    task_key: str
    """Content hash of the task."""
    candidate_digest: str
    """Content hash of the candidate."""
    device: Device
    """Where it ran."""
    precision: Precision
    """The precision policy."""
    verdict: Verdict
    """The outcome."""
    phase: Phase
    """The last phase."""
    reason: str = ""
    """Why it did not pass."""
    log_tail: str = ""
    """Last lines of the log of a crash."""
    build: BuildReport | None = None
    """Its compilation."""
    verify: VerifyReport | None = None
    """The verification."""
    profile: ProfileReport | None = None
    """The times; only when verification passed."""
    violations: tuple[Violation, ...] = ()
    """Broken rules."""
    operators: dict[str, int] = Field(default_factory=dict)
    """ATen operators that the dispatcher saw in `forward` during verification, with counts."""
    kernels: KernelReport | None = None
    """GPU kernels of one more verified call."""
    notes: tuple[str, ...] = ()
    """Remarks that break no rule."""
    failing: Regression | None = None
    """The trial that it failed or crashed on."""
    comparison: str | None = None
    """Kind of a candidate that is judged only as a comparison: `triton`."""
    signal: Signal | None = None
    """The weights on which the task's answer depends on its inputs; empty where the candidate did not run."""
    sandbox: SandboxLevel
    """Isolation of its processes."""
    stack: Stack
    """Hardware and software."""
    durations_s: dict[str, float] = Field(default_factory=dict)
    """Time of each phase."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.profile is not None and (self.verify is None or not self.verify.passed):
            raise ValueError("a profile exists only when verification passed")
        if self.verdict is Verdict.PASSED and (self.profile is None or self.violations):
            raise ValueError("PASSED needs a profile and no violation")
        if self.verify is not None and not self.comparison and (self.build is None or not self.build.succeeded):
            raise ValueError("verification needs a successful build")
        return self

    @property
    def passed_profile(self) -> ProfileReport | None:
        """The profile of a candidate that passed."""
        return self.profile if self.verdict is Verdict.PASSED else None

    @property
    def latency_us(self) -> float | None:
        """The candidate's time in microseconds if it passed."""
        return self.passed_profile.candidate.latency_us if self.passed_profile else None

    @property
    def matched_ratio(self) -> float | None:
        """The matched baseline's time / the candidate's if it passed."""
        ratio = self.passed_profile.ratio(MATCHED) if self.passed_profile else None
        return ratio.value if ratio else None


class ScreenReport(Record):
    """The candidate's times with several settings in one build. They inform a search and are no verdict.
    `latency_us[i]` belongs to `configs[i]`; it is None where the setting failed, and `failures` has the reason."""

    configs: tuple[dict[str, int], ...]
    latency_us: tuple[float | None, ...]
    failures: dict[int, str] = Field(default_factory=dict)
    #: Whether a setting failed for lack of device memory.
    out_of_memory: bool = False
