"""Computes from timing rounds the times, the ratios, when to stop, and whether the clocks agree. Pure.

A *round* times every program once on the same fresh inputs: a burst of n calls, each between two device events, and the
burst between two readings of the judge's own clock. Calls of one round share clocks, temperature and foreign load, so
rounds, not calls, are the independent samples. Each round gives one median per program and one ratio per pair of
programs.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cuda_agent.core.enums import Device
from cuda_agent.core.intervals import interval, low_quantile, lower_bound, median
from cuda_agent.core.records import Ratio, Timing
from cuda_agent.judge.profile import work
from cuda_agent.judge.profile.bursts import Burst, Round, bursts_of, medians

#: rounds stop when every needed ratio has an interval of this half width over its value.
RELATIVE_WIDTH = 0.01
MIN_ROUNDS = 6
#: a one-sided 95 % bound of a median needs five samples: 1 - 2**-5 = 96.9 %.
LEAST_TO_CONVICT = 5
#: mean over median of a burst's calls, relative to a trusted program's, that no honest program shows in most rounds.
UNEVEN = 1.5
#: share of a null burst's event time below which a program's events lie.
LEAST_EVENT = 0.8
#: share of a program's rounds in which a trusted program must have run to show what is usual.
OFTEN = 0.5
#: share of the judge's clock that events account for, above which few rounds are enough.
EXPLAINED = 0.7
#: the stop rule is evaluated only after these numbers of rounds. After each round it would favour intervals that are
#: narrow by luck. Fewer than thirteen tell too little about the dependence of samples.
CHECKPOINTS = (13, 19, 28, 41, 60, 88, 129, 190, 280, 410, 600, 880)
#: of `decided`: the width of an interval, and the confidence (several looks share the error) that the ratio lies on one
#: side of the value from which the reward counts a milestone.
DECIDED_WIDTH = 0.05
DECIDED_CONFIDENCE = 0.995
MILESTONE_RATIO = 1.0 / 0.95
#: in a search a ratio may be as uncertain as this part of its (logarithmic) distance to the milestone: ±5 % up to 1.5x,
#: ±10 % at 2x, ±19 % at 3.7x. Launch-bound programs would need a hundred rounds for ±5 %.
COARSE_SHARE = 0.15

#: standard deviation of a program's time per call between processes, in µs and as a share. The place of its memory
#: decides how often it misses a cache, and rounds in one process don't show that. cuda: 50 restarts of operators of 17
#: µs (0.16 µs, and one baseline that was 0.31 µs slower than all its candidates), 60 µs and 1.3 ms (0.11 %).
PROCESS_US = {Device.CUDA: 0.25, Device.CPU: 0.2}
PROCESS_SHARE = {Device.CUDA: 0.001, Device.CPU: 0.0}
#: the least part of a ratio that its lower end keeps, since a claim of nearly no time has an unbounded spread.
LEAST_SHARE = 1e-3


@dataclass(frozen=True)
class Tolerance:
    """The difference between the judge's clock and the events that still counts as noise: `share` of the event time
    plus `floor_us`.

    cuda: events have a resolution of 0.5 µs, a synchronisation wakes within a few µs, and the null burst removes the
    constant part. cpu: fresh output pages are copied slower than the null's, and the scheduler of a small shared
    machine gives slices of milliseconds. The lower bound over rounds removes what doesn't occur every time.
    """

    share: float
    floor_us: float

    def exceeded(self, unexplained_us: float, event_us: float) -> bool:
        return unexplained_us > self.share * event_us + self.floor_us


TOLERANCES = {Device.CUDA: Tolerance(0.10, 5.0), Device.CPU: Tolerance(0.20, 50.0)}
#: the part that a ratio's lower end need not bear. On cuda it is the resolution of events, so that what the tolerance
#: forgives isn't paid. On the CPU the interval of that excess is as wide as a short call.
UNBORNE = {Device.CUDA: Tolerance(0.02, 0.5), Device.CPU: TOLERANCES[Device.CPU]}


@dataclass(frozen=True)
class Witness:
    """The judge's clock per call, in µs. `low_us` is at most what it showed in 95 % of the rounds, (wall - null wall) /
    n; `typical_us` is the median of that. `unexplained_us` is the median over rounds of the part that the sum of events
    leaves over."""

    low_us: float
    typical_us: float
    unexplained_us: float


def paired_ratios(rounds: Sequence[Round], baseline: str, candidate: str) -> list[float]:
    """Returns baseline time / candidate time of each round in which both ran (same inputs, adjacent in time)."""
    return [
        r.bursts[baseline].median_us / r.bursts[candidate].median_us
        for r in rounds
        if baseline in r.bursts and candidate in r.bursts
    ]


def witness(rounds: Sequence[Round], name: str) -> Witness | None:
    """Returns the judge's clock on one program, or None where no null burst calibrates it.

    The median of the null over rounds is subtracted, because it is the same work every time. `low_us` is a mean over
    the burst's calls on purpose: events that put the time of a burst into fewer than half of its calls would leave the
    median small, but not the mean. It is a low quantile, because a mean, unlike the events' median, holds every moment
    that another program took, and what is paid must not depend on that.
    """
    nulls = [r.null.wall_us for r in rounds if r.null is not None]
    mine = bursts_of(rounds, name)
    if not nulls or not mine:
        return None
    null_us = median(nulls)
    per_call = [(b.wall_us - null_us) / len(b.event_us) for b in mine]
    unexplained = [(b.wall_us - null_us - sum(b.event_us)) / len(b.event_us) for b in mine]
    return Witness(low_quantile(per_call), median(per_call), median(unexplained))


def disagreement(rounds: Sequence[Round], name: str, device: Device, trusted: Iterable[str] = ()) -> str | None:
    """Returns why the program's events can't be believed, or None. Fewer than five rounds give no 95 % bound.

    Only time that the *sum* of events leaves unexplained convicts, since foreign load makes some calls slow in the
    events as on the wall. The `trusted` programs (baselines) show its effect on the rest of a burst: their time outside
    calls, and how long the quickest of them waits for its events, is subtracted. A program that reports a longer wait
    may have freed memory, which a driver does while a process waits. It pays for that and isn't convicted, as long as
    the wait took no longer than the calls. Uneven bursts don't convict, but they pay (`Witness.low_us`). A trusted
    program that was left out after a few rounds shows nothing. Events below those of empty calls convict at once.
    """
    mine = bursts_of(rounds, name)
    nulls = [r.null for r in rounds if r.null is not None]
    if not nulls or len(mine) < LEAST_TO_CONVICT:
        return None
    event_us, nothing_us = median(b.median_us for b in mine), median(b.median_us for b in nulls)
    if event_us < LEAST_EVENT * nothing_us:
        return f"its events say {event_us:.2f} µs per call, calls of a program that does nothing {nothing_us:.2f} µs"
    trusted = tuple(t for t in trusted if len(medians(rounds, t)) >= OFTEN * len(mine))
    waiting, _ = _waiting(rounds, trusted)
    usual = [median(b.outside_us for b in nulls)]
    usual += [median(b.outside_us for b in bursts) for t in trusted if (bursts := bursts_of(rounds, t))]
    hidden_us = lower_bound([_hidden_us(b, b.unexplained_us - waiting - max(usual), waiting) for b in mine])
    paired = [
        lower_bound([_hidden_us(b, beyond, waiting) for b, beyond in pairs])
        for pairs in _beyond(rounds, name, trusted)
        if len(pairs) >= LEAST_TO_CONVICT
    ]
    hidden_us = max([hidden_us, *([min(paired)] if paired else [])])
    if not TOLERANCES[device].exceeded(hidden_us, event_us):
        return None
    return (
        f"the judge's clock finds at least {hidden_us:.1f} µs per call more than the device events, "
        f"whose median is {event_us:.1f} µs (a call's end is waited for {median(b.waited_us for b in mine):.1f} µs, "
        f"that of a baseline {waiting:.1f} µs)"
    )


def unevenness(rounds: Sequence[Round], name: str, trusted: Iterable[str] = ()) -> str | None:
    """Returns a message where the time of a burst lies in a few of its calls, in most rounds: one call did the work of
    the others, whose inputs are beside its own. Returns None where calls are as even as those of a trusted program."""
    if len(medians(rounds, name)) < LEAST_TO_CONVICT:
        return None
    spread = _spread(rounds, name, trusted)
    if spread <= UNEVEN:
        return None
    return f"the mean of a burst's calls is at least {spread:.1f} times their median: some calls did the work of others"


def _spread(rounds: Sequence[Round], name: str, trusted: Iterable[str]) -> float:
    """Returns the lower 95 % bound of mean over median, relative to the typical one of the most uneven trusted program;
    at least 1."""
    own = [burst.spread for burst in bursts_of(rounds, name)]
    usual = [median(b.spread for b in bursts) for other in trusted if (bursts := bursts_of(rounds, other))]
    return max(1.0, lower_bound(own) / max([1.0, *usual]))


def _waiting(rounds: Sequence[Round], trusted: Sequence[str]) -> tuple[float, str | None]:
    """Returns how long the quickest trusted program typically waits for its events, which is the cost of a
    synchronisation, and its name. Without trusted programs it takes the null program's."""
    found = [(median(b.waited_us for b in bursts), name) for name in trusted if (bursts := bursts_of(rounds, name))]
    if found:
        return min(found)
    nulls = [r.null.waited_us for r in rounds if r.null is not None]
    return median(nulls or [0.0]), None


def _hidden_us(burst: Burst, beyond_us: float, waiting_us: float) -> float:
    """Returns the rest of the judge's clock when the burst's own waiting explains as much of it as it may."""
    return beyond_us - min(max(0.0, burst.waited_us - waiting_us), burst.mean_us)


def _beyond(rounds: Sequence[Round], name: str, trusted: Sequence[str]) -> list[list[tuple[Burst, float]]]:
    """Returns for each trusted program the program's bursts in common rounds, each with the unexplained µs per call
    beyond that program's time outside its calls and the cost of a synchronisation in the same round. A busy machine or
    a slower core affects a whole round."""
    typical, quickest = _waiting(rounds, trusted)
    found = []
    for other in trusted:
        pairs = []
        for r in rounds:
            if other != name and name in r.bursts and other in r.bursts:
                waiting = r.bursts[quickest].waited_us if quickest in r.bursts else typical
                pairs.append((r.bursts[name], r.bursts[name].unexplained_us - waiting - r.bursts[other].outside_us))
        if pairs:
            found.append(pairs)
    return found


def _excess_us(rounds: Sequence[Round], name: str, trusted: Sequence[str]) -> tuple[float, float]:
    """Returns (typical value, upper end of the interval) of the µs per call that the judge's clock finds beyond events
    and what any trusted program shows; zeros for a trusted program."""
    found = [[beyond for _, beyond in pairs] for pairs in _beyond(rounds, name, trusted)]
    if not found or name in trusted:
        return 0.0, 0.0
    return min(median(values) for values in found), min(interval(values)[1] for values in found)


def is_explained(rounds: Sequence[Round], name: str) -> bool:
    """Whether a program's events account for most of the judge's clock, so that little could be hidden from it."""
    mine = bursts_of(rounds, name)
    return bool(mine) and median(sum(b.event_us) / b.wall_us for b in mine) > EXPLAINED


def _undecided_us(rounds: Sequence[Round], name: str, trusted: Sequence[str], device: Device) -> float:
    """Returns the µs per call that the judge's clock can't exclude beyond the events: the upper end of the interval of
    the excess, or 0 where that is too little to count."""
    high = _excess_us(rounds, name, trusted)[1]
    return high if UNBORNE[device].exceeded(high, median(medians(rounds, name))) else 0.0


def waking_us(rounds: Sequence[Round], trusted: Iterable[str]) -> float:
    """Returns what the events of trusted programs typically leave over per call. A synchronisation that had to wait
    wakes later than the null's, which never waits. It isn't a program's time, so it is subtracted from every program's
    witness."""
    found = [seen.unexplained_us for name in trusted if (seen := witness(rounds, name)) is not None]
    return max(0.0, median(found or [0.0]))


def _inflation(rounds: Sequence[Round], name: str, trusted: Sequence[str], device: Device) -> float:
    """Returns paying time / event time, at least 1. Where the witness' lower bound, the mean of uneven calls or the
    typical excess over trusted programs is more than noise and exceeds the events, it pays. With too few rounds to
    convict, the typical witness pays in full; otherwise a program that makes rounds slow would be believed."""
    seen, scale = witness(rounds, name), _spread(rounds, name, trusted)
    event_us, waking = median(medians(rounds, name)), waking_us(rounds, trusted)
    if seen is not None:
        few = len(medians(rounds, name)) < LEAST_TO_CONVICT
        scale = max(scale, ((seen.typical_us if few else seen.low_us) - waking) / event_us)
    scale = max(scale, work.least_us(rounds, name, trusted) / event_us)
    excess = _excess_us(rounds, name, trusted)[0]
    if TOLERANCES[device].exceeded(excess, event_us):
        scale = max(scale, (event_us + excess) / event_us)
    return scale


def timing(
    rounds: Sequence[Round],
    name: str,
    *,
    device: Device = Device.CUDA,
    trusted: Sequence[str] = (),
    queued_us: float | None = None,
    busy_us: float | None = None,
    peak_memory_bytes: int | None = None,
) -> Timing:
    """Returns the record of one program. Its latency is max(median over rounds of event medians, witness' lower bound).
    `trusted` programs show what the judge's clock adds on this machine. `samples_us` are the round medians. Raises
    ValueError when the program never ran."""
    bursts = bursts_of(rounds, name)
    values = [burst.median_us for burst in bursts]
    event_us = median(values)
    low, high = interval(values)
    seen, scale = witness(rounds, name), _inflation(rounds, name, trusted, device)
    floor = event_us * scale
    return Timing(
        latency_us=floor,
        low_us=floor if scale > 1 else low,
        high_us=max(high, floor),
        event_us=event_us,
        witness_low_us=seen.low_us if seen else None,
        unexplained_us=seen.unexplained_us if seen else None,
        waited_us=median(burst.waited_us for burst in bursts),
        queued_us=queued_us,
        busy_us=busy_us,
        repetitions=sum(len(burst.event_us) for burst in bursts),
        samples_us=tuple(round(value, 3) for value in values),
        peak_memory_bytes=peak_memory_bytes,
    )


def ratio(
    rounds: Sequence[Round],
    baseline: str,
    candidate: str,
    trusted: Sequence[str] = (),
    device: Device = Device.CUDA,
) -> Ratio:
    """Returns the median of the paired ratios with its interval, scaled where a witness pays. With too few pairs for an
    interval, their span is doubled, and is at least ±10 %. Raises ValueError without a pair."""
    values = paired_ratios(rounds, baseline, candidate)
    low, high = _over_processes(interval(values), rounds, (baseline, candidate), device, median(values))
    if len(values) < LEAST_TO_CONVICT:
        margin = max(high / low, 1.1)
        low, high = low / margin, high * margin
    mine = _inflation(rounds, candidate, trusted, device)
    scale = _inflation(rounds, baseline, trusted, device) / mine
    # The reward takes the lower end, since what the judge's own clock can't exclude must not pay.
    event_us = median(medians(rounds, candidate))
    low *= min(1.0, event_us * mine / (event_us + _undecided_us(rounds, candidate, trusted, device)))
    return Ratio(baseline=baseline, value=median(values) * scale, low=low * scale, high=high * scale)


def _over_processes(
    found: tuple[float, float], rounds: Sequence[Round], names: tuple[str, str], device: Device, value: float
) -> tuple[float, float]:
    """Returns the interval of a ratio, widened by the spread between processes."""
    alone = [PROCESS_US[device] / median(medians(rounds, name)) for name in names]
    part = 1.96 * math.hypot(*(math.hypot(PROCESS_SHARE[device], of_calls) for of_calls in alone))
    low, high = 1.0 - math.hypot(1.0 - found[0] / value, part), 1.0 + math.hypot(found[1] / value - 1.0, part)
    return value * max(low, LEAST_SHARE), value * high


def is_settled(values: Sequence[float]) -> bool:
    """Whether these paired ratios are enough: their interval is within ±1 %. Asked only at checkpoints."""
    return len(values) in CHECKPOINTS and is_narrow(values)


def is_decided(values: Sequence[float], *, coarse: bool = False) -> bool:
    """Whether more rounds would change neither the milestone nor the ratio by more than ±5 %; with `coarse`, by more
    than a part of its distance to the milestone. Asked only at checkpoints."""
    if len(values) not in CHECKPOINTS:
        return False
    distance = abs(math.log(median(values) / MILESTONE_RATIO))
    if not is_narrow(values, max(DECIDED_WIDTH, COARSE_SHARE * distance if coarse else 0.0)):
        return False
    low, high = interval(values, DECIDED_CONFIDENCE)
    return low > MILESTONE_RATIO or high < MILESTONE_RATIO


def is_narrow(values: Sequence[float], width: float = RELATIVE_WIDTH) -> bool:
    """Whether the 95 % interval of enough paired ratios is within ±`width` of their median."""
    if len(values) < MIN_ROUNDS:
        return False
    low, high = interval(values)
    return (high - low) / 2 <= width * median(values)
