"""Times the same program as candidate and as baseline (A/A), through the judge's own profile. The differences from 1
are noise.

Each evaluation has its own candidate worker, so the numbers contain the effects of a restart: the place of memory, the
core, the clock. Nothing is compiled: the program is an operator of torch, and eager is the only baseline.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.core import intervals
from cuda_agent.core.assets import filled
from cuda_agent.core.baselines import EAGER
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import DeviceError
from cuda_agent.core.records import Candidate, OutputErrors, ProfileReport, Task, TrialReport, VerifyReport
from cuda_agent.judge.build.extension import Progress, silent
from cuda_agent.judge.profile.profile import Profiled, profile_candidate
from cuda_agent.judge.session import JudgeSession

#: the result of verification for a program that is the reference itself.
_ERROR = 1e-6


@dataclass(frozen=True)
class KnownKernel:
    """One operator of torch on one tensor of normal values. `label` is its approximate time."""

    label: str
    expression: str
    shape: tuple[int, ...]

    def task(self) -> Task:
        source = filled(Path(__file__).with_suffix(".py.j2"), expression=self.expression, shape=self.shape)
        name = f"aa_{self.label}".replace(" ", "_").replace("µ", "u").replace(".", "_")
        return Task(name=name, source=source, origin="stability")


KERNELS = {
    Device.CUDA: (
        KnownKernel("5 µs", "torch.relu(x)", (1 << 20,)),
        KnownKernel("50 µs", "torch.relu(x)", (24 << 20,)),
        KnownKernel("1 ms", "x @ x", (3072, 3072)),
        KnownKernel("20 ms", "x @ x", (8192, 8192)),
    ),
    Device.CPU: (
        KnownKernel("0.2 ms", "torch.tanh(x)", (128, 1024)),
        KnownKernel("2 ms", "torch.tanh(x)", (1024, 1024)),
        KnownKernel("20 ms", "x @ x", (1024, 1024)),
    ),
}


@dataclass(frozen=True)
class Sample:
    """One evaluation: the ratio eager / candidate, which should be 1, and the hardware's state. `void` says why there
    is no ratio."""

    kernel: str
    ratio: float | None
    low: float | None = None
    high: float | None = None
    latency_us: float | None = None
    rounds: int = 0
    seconds: float = 0.0
    throttle_reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    clocks: dict[str, float] = field(default_factory=dict)
    candidate_us: tuple[float, ...] = ()
    baseline_us: tuple[float, ...] = ()
    void: str = ""

    @property
    def covers(self) -> bool:
        """Whether the interval contains 1."""
        return self.low is not None and self.high is not None and self.low <= 1.0 <= self.high


@contextmanager
def same_twice(
    kernel: KnownKernel, options: JudgeOptions, progress: Progress = silent
) -> Iterator[Callable[[], Sample]]:
    """Opens a judge for one kernel. Each call of what it yields is one evaluation with its own worker. Raises the
    judge's errors."""
    with JudgeSession(kernel.task(), options, progress=progress) as session:
        session.baselines.eager_only = True
        yield lambda: _evaluate(session, kernel)


def _evaluate(session: JudgeSession, kernel: KnownKernel) -> Sample:
    begin = time.monotonic()
    return _sample(kernel, timed_again(session), time.monotonic() - begin)


def timed_again(session: JudgeSession, more: str = "") -> Profiled:
    """Times a session's task as its own candidate, in a fresh worker. `more` is Python that the worker runs first."""
    model = f"{session.task.source}\n\nModelNew = Model\n{more}"
    errors = OutputErrors(candidate_error=_ERROR, eager_error=_ERROR)
    trial = TrialReport(kind="fresh", passed=True, outputs=(errors,) * len(session.reference.spec.outputs))
    with session.process(Candidate(files={"model_new.py": model}), None) as process:
        process.release()
        session.reference.release()
        verified = VerifyReport(passed=True, trials=(trial,))
        return profile_candidate(session, process, verified, floor=_ERROR, torch_computes=True)


def _sample(kernel: KnownKernel, found: Profiled, seconds: float) -> Sample:
    if found.report is None:
        fault = found.fault
        if fault is not None and fault.verdict is not Verdict.TIMING_VOID:
            raise DeviceError(
                f"The program under test failed: {fault.reason}", "Check the device", detail=fault.log_tail
            )
        void = fault.reason if fault is not None else "; ".join(v.detail for v in found.violations)
        return Sample(kernel.label, None, seconds=seconds, void=void)
    report: ProfileReport = found.report
    ratio = report.ratios[EAGER]
    return Sample(
        kernel=kernel.label,
        ratio=ratio.value,
        low=ratio.low,
        high=ratio.high,
        latency_us=report.candidate.latency_us,
        rounds=report.rounds,
        seconds=seconds,
        throttle_reasons=report.throttle_reasons,
        notes=report.notes,
        clocks=report.clocks,
        candidate_us=report.candidate.samples_us,
        baseline_us=report.baselines[EAGER].samples_us,
    )


@dataclass(frozen=True)
class Stability:
    """The stability of one kernel's ratios: `worst` is the largest |ratio - 1|, `spread` their range over their median,
    `coverage` the share of intervals that hold 1, and `half_width` their typical half width over the ratio."""

    kernel: str
    evaluations: int
    void: int
    latency_us: float | None
    latency_spread: float | None
    median: float | None
    worst: float | None
    spread: float | None
    coverage: float | None
    half_width: float | None
    seconds: float | None
    throttle_reasons: tuple[str, ...]


def summarize(samples: Sequence[Sample]) -> Stability:
    """Summarizes the samples of one kernel, at least one."""
    good = [s for s in samples if s.ratio is not None]
    ratios = [s.ratio for s in good if s.ratio is not None]
    times = [s.latency_us for s in good if s.latency_us is not None]
    widths = [(s.high - s.low) / 2 / s.ratio for s in good if s.low and s.high and s.ratio]
    reasons = {reason for s in samples for reason in s.throttle_reasons}
    return Stability(
        kernel=samples[0].kernel,
        evaluations=len(samples),
        void=len(samples) - len(good),
        latency_us=intervals.median(times) if times else None,
        latency_spread=spread(times),
        median=intervals.median(ratios) if ratios else None,
        worst=max((abs(ratio - 1.0) for ratio in ratios), default=None),
        spread=spread(ratios),
        coverage=sum(s.covers for s in good) / len(good) if good else None,
        half_width=intervals.median(widths) if widths else None,
        seconds=intervals.median([s.seconds for s in good]) if good else None,
        throttle_reasons=tuple(sorted(reasons)),
    )


def spread(values: Sequence[float]) -> float | None:
    """Returns (largest - smallest) / median, None below two values."""
    return (max(values) - min(values)) / intervals.median(values) if len(values) > 1 else None
