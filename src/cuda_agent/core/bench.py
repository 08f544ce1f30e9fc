"""What a policy did on a suite of tasks: records that `bench` writes, and `report`, `compare` and `promote` read."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from cuda_agent.core.inspection import Roofline, Work
from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.records import Evaluation, Resumption, Reward
from cuda_agent.core.stack import Stack

#: what bounds a task by the counted bytes and operations of its graph against the roofline.
RooflineClass = Literal["memory", "compute", "latency"]


class SuiteTask(Record):
    """One task of a suite. `id` is unique in it and is the name of its run directory; `level` and `roofline` are None
    where the suite doesn't say, or nothing could be counted."""

    id: str
    name: str
    key: str
    level: str | None = None
    origin: str = "file"
    operators: tuple[str, ...] = ()
    roofline: RooflineClass | None = None
    #: what any answer must move and compute, counted on the reference's graph.
    work: Work | None = None


class BenchResult(StoredRecord):
    """How one task ended; a line of `results.jsonl`. `outcome` is the run's own word, or `error` where the task could
    not be judged at all (`message` says why). `directory` is the run directory, relative to the benchmark's."""

    file_name = "result.json"
    task: SuiteTask
    outcome: str
    message: str = ""
    evaluation: Evaluation | None = None
    reward: Reward | None = None
    turns: int = 0
    tokens: int = 0
    cost: float = 0.0
    wall_s: float = 0.0
    judge_s: float = 0.0
    directory: str | None = None
    #: candidates on the way that didn't compile.
    failed_builds: int = 0
    #: no other task was at work beside it.
    alone: bool = False


class BenchManifest(StoredRecord):
    """What a benchmark run is: the suite as it was resolved, the policy, every option, the stack."""

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
    #: the device's limits as they were measured on this stack.
    limits: Roofline | None = None
    #: peak memory of an eager call on the device by the tasks' ids, where the suite says it.
    peak_bytes: dict[str, int] = Field(default_factory=dict)


class Estimate(Record):
    """A number with its 95 % interval by bootstrap over tasks; None where there is nothing to count."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Against(Record):
    """A group of tasks against one baseline (`eager`, `compile`, `matched`). Formulas: docs/metrics.md. Rates are
    shares of all tasks, failures included. `fast_p[i]` belongs to `thresholds[i]`."""

    baseline: str
    faster: Estimate
    significantly_faster: Estimate
    faster_by_5_percent: Estimate
    geomean_correct: Estimate
    geomean_all: Estimate
    median_correct: Estimate
    median_all: Estimate
    #: of correct tasks, by the cost of one more call in a full queue: the GPU's own time, without the host's launch.
    geomean_queued: Estimate = Estimate(value=None)
    #: share of the sum of log speed-ups (of correct tasks that are faster) which the fastest tenth carries.
    top_tenth_share: float | None
    thresholds: tuple[float, ...] = ()
    fast_p: tuple[float, ...] = ()


class Group(Record):
    """Metrics of all tasks (`by` is `all`), or of those of one level, origin or roofline class."""

    by: Literal["all", "level", "origin", "roofline"]
    name: str
    tasks: int
    passed: Estimate
    against: tuple[Against, ...]
    verdicts: dict[str, int] = Field(default_factory=dict)
    rewards: dict[str, int] = Field(default_factory=dict)


class Metrics(StoredRecord):
    """All metrics of a benchmark run, as far as it came: over the `done` of its `tasks`."""

    file_name = "metrics.json"
    tasks: int
    done: int
    groups: tuple[Group, ...]


class Audit(Record):
    """A person's word on one task of a report."""

    task: str
    verdict: Literal["sound", "doubtful", "cheating"]
    note: str = ""
    by: str = ""
    when: str = ""


class Audits(StoredRecord):
    """What people said of a run's tasks; beside the run."""

    file_name = "audit.json"
    audits: tuple[Audit, ...] = ()
