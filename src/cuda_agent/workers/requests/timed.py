"""Requests of a timing, the same to a candidate and to a baseline: rings of slots, bursts, queues, screening. `program`
is a baseline's name, "candidate" or "null"."""

from __future__ import annotations

from pydantic import Field

from cuda_agent.workers.requests import Answer, Done, Many, Request, Spec, TensorRefs
from cuda_agent.workers.requests.candidate import DispatchRecord


class MakeRing(Request[Done]):
    """Takes rings of `slots` sets of inputs and outputs, one set after the other. `strides`: how the reference's outputs
    lie in memory; empty where that is free."""

    slots: int
    spec: Spec
    inputs: TensorRefs
    outputs: TensorRefs
    strides: tuple[tuple[int, ...], ...]


class DropRing(Request[Done]):
    """Forgets the rings, so that their arenas may be detached."""


class Warmed(Answer):
    """Outputs that lie in memory otherwise than the reference's. The program copies them from here on."""

    otherwise: list[int]


class WarmUp(Request[Warmed]):
    """Calls the program at least `calls` times, and for `seconds`."""

    program: str
    calls: int
    seconds: float


class GetReady(Request[Done]):
    """A burst comes next: moves to the core that it launches from (None: any) and warms it up. Until `ReleaseOutputs`
    the worker waits for requests without sleep, for at most `spin_s` seconds each."""

    core: int | None
    spin_s: float
    flush_bytes: int


class BurstTimes(Answer):
    """As `runner.Times`: µs of each call, and how much longer the process waited for a call's end, on average."""

    event_us: list[float]
    waited_us: float


class RunBurst(Request[BurstTimes]):
    """Times the program on the first slots, one for each spec; None: on all, with the ring's spec."""

    program: str
    flush_bytes: int
    specs: tuple[Spec, ...] | None = None


class DeliverOutputs(Request[Done]):
    """Copies the last burst's outputs into the output ring."""


class RecordBurst(Request[DispatchRecord]):
    """Records the dispatcher during a burst of so many calls."""

    program: str
    calls: int


class ReleaseOutputs(Request[Done]):
    """Frees the last burst's outputs."""


class QueueTime(Answer):
    """µs of one more call in a full queue."""

    us: float


class TimeQueue(Request[QueueTime]):
    """Times `calls` calls in a row without synchronising."""

    program: str
    calls: int


class ExtraFigures(Answer):
    """None where a figure isn't known or wasn't asked for."""

    busy_us: float | None = None
    peak_memory_bytes: int | None = Field(default=None, ge=0)


class MeasureExtras(Request[ExtraFigures]):
    """Measures the device memory of a call and, with `busy`, the time in which the GPU computes."""

    program: str
    busy: bool


class ScreenTimes(Answer):
    """`latency_us[i]` belongs to the i-th setting, None where it failed as `failures` says. `device_lost`: an error
    stays on the device. `out_of_memory`: a setting found too little of its memory."""

    latency_us: Many[float | None]
    failures: dict[str, str]
    device_lost: bool
    out_of_memory: bool = False


class ScreenConfigs(Request[ScreenTimes]):
    """Times many settings of one candidate within `budget_s` seconds."""

    program: str
    configs: tuple[dict[str, int], ...]
    budget_s: float
    flush_bytes: int
    core: int | None = None
