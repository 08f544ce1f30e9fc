"""The records of a benchmark, and of the comparison of several: `bench` writes them, `report` shows them."""

from typing import Any, Literal

from pydantic import Field

from cuda_agent.core.inspection import LeastWork, Roofline
from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.records import Evaluation, Resumption, Reward, Trajectory
from cuda_agent.core.stack import Stack

#: The bound of a task: the bytes and operations of its graph against the roofline.
RooflineClass = Literal["memory", "compute", "latency"]


class SuiteTask(Record):
    """One task of a suite."""

    id: str
    """Unique in the suite; names the run directory."""
    name: str
    """The task's name."""
    key: str
    """Content hash of the task."""
    level: str | None = None
    """Level, where the suite gives one."""
    origin: str = "file"
    """Where the task comes from."""
    operators: tuple[str, ...] = ()
    """Names of its operators."""
    roofline: RooflineClass | None = None
    """The bound of the task."""
    work: LeastWork | None = None
    """The least work of a call, counted on the reference's graph."""


class BenchResult(StoredRecord):
    """The result of one task, a line of `results.jsonl`."""

    file_name = "result.json"
    task: SuiteTask
    """The task."""
    outcome: str
    """The run's outcome, or `error` where the task could not be judged."""
    message: str = ""
    """Why, for an error."""
    evaluation: Evaluation | None = None
    """The best candidate's evaluation."""
    reward: Reward | None = None
    """Its reward."""
    turns: int = 0
    """Turns of the run."""
    tokens: int = 0
    """Tokens of the run."""
    cost: float = 0.0
    """Cost of the run, in the currency of the price table."""
    wall_s: float = 0.0
    """Time of the run."""
    judge_s: float = 0.0
    """Time of the judge."""
    directory: str | None = None
    """Run directory, relative to the benchmark."""
    failed_builds: int = 0
    """Candidates that didn't compile."""
    alone: bool = False
    """Whether no other task ran beside it."""

    @classmethod
    def of(cls, task: SuiteTask, run: Trajectory, *, turns: int, failed_builds: int = 0) -> "BenchResult":
        """Returns the result of a finished run."""
        spent = run.budget.model_dump(include={"tokens", "cost", "wall_s", "judge_s"})
        told = {"outcome": run.outcome, "message": run.message, "evaluation": run.evaluation, "reward": run.reward}
        return cls(task=task, turns=turns, failed_builds=failed_builds, **told, **spent)


class BenchManifest(StoredRecord):
    """The configuration of a benchmark run: the resolved suite, the policy, every option and the stack."""

    file_name = "bench.json"
    command: tuple[str, ...]
    suite: str
    tasks: tuple[SuiteTask, ...]
    policy: str
    configuration: dict[str, Any]
    version: str
    commit: str | None
    stack: Stack
    started: str
    resumed: tuple[Resumption, ...] = ()
    #: The device's limits, measured on this stack.
    limits: Roofline | None = None
    #: Written by earlier versions: a task's id -> the peak memory of an eager call on the device.
    peak_bytes: dict[str, int] = Field(default_factory=dict)


class Estimate(Record):
    """A number with its 95 % interval from a bootstrap over tasks. The number is None where no task counts."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Against(Record):
    """A group of tasks against one baseline (`eager`, `compile`, `matched`); docs/metrics.md has the formulas. Rates
    are shares of all tasks, failures included. `fast_p[i]` belongs to `thresholds[i]`."""

    baseline: str
    faster: Estimate
    significantly_faster: Estimate
    faster_by_5_percent: Estimate
    geomean_correct: Estimate
    geomean_all: Estimate
    median_correct: Estimate
    median_all: Estimate
    #: Speed-up of correct tasks by the cost of one more call in a full queue: the GPU's time without the host's launch.
    geomean_queued: Estimate = Estimate(value=None)
    #: The share of the fastest tenth in the sum of log speed-ups, over correct tasks that are faster.
    top_tenth_share: float | None
    thresholds: tuple[float, ...] = ()
    fast_p: tuple[float, ...] = ()


class MetricsGroup(Record):
    """The metrics of all tasks (`by` is `all`), or of the tasks of one level, origin, roofline class or
    signal."""

    by: Literal["all", "level", "origin", "roofline", "signal"]
    name: str
    tasks: int
    passed: Estimate
    #: Tasks whose candidate passed and isn't faster than the matched baseline beyond its interval.
    kept: int = 0
    against: tuple[Against, ...]
    verdicts: dict[str, int] = Field(default_factory=dict)
    rewards: dict[str, int] = Field(default_factory=dict)


class Metrics(StoredRecord):
    """The metrics of a benchmark run, over the `done` of its `tasks`."""

    file_name = "metrics.json"
    tasks: int
    done: int
    groups: tuple[MetricsGroup, ...]


AuditVerdict = Literal["sound", "doubtful", "cheating"]


class Audit(Record):
    """A person's verdict on one task of a report."""

    task: str
    verdict: AuditVerdict
    note: str = ""
    by: str = ""
    when: str = ""


class Audits(StoredRecord):
    """The verdicts of people on a run's tasks; the file is in the run's folder."""

    file_name = "audit.json"
    audits: tuple[Audit, ...] = ()


Compared = Literal["faster", "slower", "same", "gained", "lost", "neither", "missing"]


class Side(Record):
    """One run. `stack_differences` are differences from the first run's stack, with which times can't be compared.
    `option_differences` are other options, and `notes` are other differences, such as another GPU of the same kind."""

    directory: str
    policy: str
    commit: str | None
    started: str
    done: int
    tasks: int
    passed: int
    stack_differences: tuple[str, ...] = ()
    option_differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Cell(Record):
    """One task in one run. `faster` is the first run's latency / this run's. `comparison` is `faster` or `slower` where
    the intervals of both latencies don't overlap, and `same` where they do. It is `gained`, `lost` or `neither` where
    one or both didn't pass, and `missing` where a run hasn't done the task."""

    result: str
    latency_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    faster: float | None = None
    comparison: Compared = "same"


class Row(Record):
    task: str
    cells: tuple[Cell, ...]


class Paired(Record):
    """A later run against the first one. `ours` is the geometric mean of first latency / this latency over tasks that
    passed in both, with its interval from a bootstrap over tasks. `speedups` maps a baseline to the geometric mean over
    all tasks of (this run's speed-up / the first one's), where a failure counts as 1.0. A difference is significant
    where the interval excludes 1."""

    tasks: int
    both_passed: int
    ours: Estimate
    speedups: dict[str, Estimate]
    comparisons: dict[str, int]


class Comparison(StoredRecord):
    """Runs side by side. The first run is the reference."""

    file_name = "comparison.json"
    sides: tuple[Side, ...] = Field(min_length=2)
    rows: tuple[Row, ...]
    paired: tuple[Paired, ...]

    @property
    def same_stack(self) -> bool:
        return not any(side.stack_differences for side in self.sides)
