"""Requests of a timing, the same to a candidate and to a baseline: rings of slots, bursts, queues, screening. `program`
is a baseline's name, "candidate" or "null"."""

from __future__ import annotations

from cuda_agent.workers.requests import Count, Done, Many, Microseconds, Spec, TensorRefs, WorkerAnswer, WorkerRequest
from cuda_agent.workers.requests.candidate import DispatchRecord


class MakeRing(WorkerRequest[Done]):
    """Takes rings of `slots` sets of inputs and outputs, one set after the other. `strides` says how the reference's
    outputs lie in memory; empty where that is free."""

    slots: int
    spec: Spec
    inputs: TensorRefs
    outputs: TensorRefs
    strides: tuple[tuple[int, ...], ...]


class DropRing(WorkerRequest[Done]):
    """Forgets the rings, so that their arenas may be detached. With `frees` the worker also gives back device memory
    that it holds without need."""

    frees: bool = False


class Warmed(WorkerAnswer):
    """Outputs that lie in memory otherwise than the reference's. The program copies them from here on."""

    otherwise: list[int]


class WarmUp(WorkerRequest[Warmed]):
    """Calls the program at least `calls` times, and for `seconds`."""

    program: str
    calls: int
    seconds: float


class GetReady(WorkerRequest[Done]):
    """A burst comes next: moves to the core that it launches from (None: any) and warms it up. Until `ReleaseOutputs`
    the worker waits for requests without sleep, for at most `spin_s` seconds each."""

    core: int | None
    spin_s: float
    flush_bytes: int


class BurstTimes(WorkerAnswer):
    """The µs of each call, and how much longer the process waited for a call's end, on average (see `runner.Times`)."""

    event_us: list[Microseconds]
    waited_us: Microseconds


class RunBurst(WorkerRequest[BurstTimes]):
    """Times the program on the first slots, one for each spec; None: on all, with the ring's spec. `rng` seeds torch's
    generators before the first call."""

    program: str
    flush_bytes: int
    rng: int
    specs: tuple[Spec, ...] | None = None


class DeliverOutputs(WorkerRequest[Done]):
    """Copies the last burst's outputs into the output ring."""


class RecordBurst(WorkerRequest[DispatchRecord]):
    """Records the dispatcher during a burst of so many calls."""

    program: str
    calls: int


class ReleaseOutputs(WorkerRequest[Done]):
    """Frees the last burst's outputs."""


class QueueTime(WorkerAnswer):
    """µs of one more call in a full queue."""

    us: Microseconds


class TimeQueue(WorkerRequest[QueueTime]):
    """Times `calls` calls in a row without synchronising."""

    program: str
    calls: int


class ExtraFigures(WorkerAnswer):
    """None where a figure isn't known or wasn't asked for."""

    busy_us: Microseconds | None = None
    peak_memory_bytes: Count | None = None


class MeasureExtras(WorkerRequest[ExtraFigures]):
    """Measures the device memory of a call and, with `busy`, the time in which the GPU computes."""

    program: str
    busy: bool


class TriedConfigs(WorkerAnswer):
    """`failures`: place of a setting that can't be timed -> why. `device_lost`: an error stays on the device.
    `out_of_memory`: a setting found too little of its memory."""

    failures: dict[str, str]
    device_lost: bool = False
    out_of_memory: bool = False


class TryConfigs(WorkerRequest[TriedConfigs]):
    """Calls one candidate with each setting, and compares the results. Begins no setting after `budget_s` seconds."""

    program: str
    configs: tuple[dict[str, int], ...]
    budget_s: float


class ScreenTimes(TriedConfigs):
    """`latency_us[i]` belongs to the i-th setting, None where it failed as `failures` says."""

    latency_us: Many[Microseconds | None]


class ScreenConfigs(WorkerRequest[ScreenTimes]):
    """Times settings of one candidate, which were tried before, within `budget_s` seconds."""

    program: str
    configs: tuple[dict[str, int], ...]
    budget_s: float
    flush_bytes: int
    core: int | None = None
