"""What a timing round records of each program."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cuda_agent.core.intervals import median


@dataclass(frozen=True)
class Work:
    """Processor time in µs that a worker's threads took from before its inputs came until it answered: `calling_us` the
    thread that makes the calls, `helping_us` the busiest other one. `run_us`: how long it took to answer."""

    calling_us: float
    helping_us: float
    run_us: float


@dataclass(frozen=True)
class Burst:
    """One program in one round: the event time of each call, the judge's clock around the burst, and how much longer
    than its events the worker reports to have waited for each call, on average (see `runner.Times`). `work`: what the
    kernel's accounts say of the worker meanwhile (cpu)."""

    event_us: tuple[float, ...]
    wall_us: float
    waited_us: float = 0.0
    work: Work | None = None

    @cached_property
    def median_us(self) -> float:
        return median(self.event_us)

    @cached_property
    def mean_us(self) -> float:
        return sum(self.event_us) / len(self.event_us)

    @property
    def unexplained_us(self) -> float:
        """The part of the judge's clock per call that the events don't explain."""
        return self.wall_us / len(self.event_us) - self.mean_us

    @property
    def outside_us(self) -> float:
        """The part of the judge's clock per call that neither events nor waiting explain: protocol, copies and samples,
        which are the same for all programs."""
        return self.unexplained_us - self.waited_us

    @property
    def spread(self) -> float:
        """Mean over median. It is far above 1 where a few calls hold most of the time."""
        return self.mean_us / self.median_us


@dataclass
class Round:
    """All programs' bursts on the same inputs. `null` is the runner with a program that does nothing."""

    bursts: dict[str, Burst] = field(default_factory=dict)
    null: Burst | None = None


def bursts_of(rounds: Sequence[Round], name: str) -> list[Burst]:
    """Returns the program's bursts, in the order of the rounds in which it ran."""
    return [r.bursts[name] for r in rounds if name in r.bursts]


def medians(rounds: Sequence[Round], name: str) -> list[float]:
    """Returns the event median in µs of each round in which the program ran."""
    return [burst.median_us for burst in bursts_of(rounds, name)]
