"""The estimator on synthetic rounds whose truth is known."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_agent.core.enums import Device
from cuda_agent.core.intervals import dependence, interval, lower_bound, median
from cuda_agent.judge.profile import timing
from cuda_agent.judge.profile.bursts import Burst, Round
from cuda_agent.reward import MARGIN


def draw_round(
    rng: random.Random, times: dict[str, float], noise: float, calls: int = 4, hidden_us: float = 0.0
) -> Round:
    """A round with drift common to all programs, noise of each program in the round, of each call, and rare hiccups."""
    drift = rng.gauss(1.0, 0.05)
    found = Round(null=Burst((1.0,) * calls, wall_us=300.0 + abs(rng.gauss(0, 10))))
    for name, true_us in times.items():
        own = true_us * drift * rng.gauss(1.0, noise)
        events = [own * rng.gauss(1.0, noise) + (own * 5 if rng.random() < 0.03 else 0.0) for _ in range(calls)]
        extra = hidden_us * calls if name == "candidate" else 0.0
        wall = 300.0 + sum(events) + extra + abs(rng.gauss(0, 10))
        found.bursts[name] = Burst(tuple(events), wall)
    return found


def test_median_and_interval_by_hand() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert interval([5.0, 1.0, 2.0, 4.0, 3.0]) == (1.0, 5.0)
    # n = 20: P(Bin(20, ½) < 6) = 0.0207 and P(< 7) = 0.0577, so the 6th from either end.
    mixed = [float(v) for pair in zip(range(1, 11), range(11, 21), strict=True) for v in pair]
    assert dependence(mixed) == 1.0 and interval(mixed) == (6.0, 15.0)
    # one-sided: P(Bin(20, ½) < 6) ≤ 5 %.
    assert lower_bound(mixed) == 6.0
    with pytest.raises(ValueError):
        interval([])


@given(st.lists(st.floats(min_value=0.1, max_value=1e6), min_size=1, max_size=1100))
@settings(max_examples=60, deadline=None)
def test_interval_holds_the_median(values: list[float]) -> None:
    low, high = interval(values)
    assert low <= median(values) <= high
    assert lower_bound(values) <= median(values)


@pytest.mark.parametrize("count", [6, 9, 25])
def test_interval_of_the_ratio_covers_the_truth(count: int) -> None:
    rng = random.Random(count)
    covered = 0
    for _ in range(400):
        rounds = [draw_round(rng, {"candidate": 100.0, "eager": 150.0}, 0.02) for _ in range(count)]
        found = timing.ratio(rounds, "eager", "candidate")
        covered += found.low <= 1.5 <= found.high
    assert covered / 400 >= 0.93


def moods(rng: random.Random, rho: float, skew: float, sd: float) -> Iterator[float]:
    """Ratios around 1 with median 1: a Gaussian with lag-one correlation `rho`, bent to a log-normal by `skew`."""
    state = rng.gauss(0, 1)
    while True:
        state = rho * state + rng.gauss(0, (1 - rho * rho) ** 0.5)
        yield 1.0 + sd * (state if not skew else (math.exp(skew * state) - 1.0) / skew)


@pytest.mark.parametrize(
    "enough",
    [timing.is_settled, timing.is_decided, functools.partial(timing.is_decided, coarse=True)],
    ids=["settled", "decided", "coarse"],
)
@pytest.mark.parametrize("truth", [1.0, 1.06, 1.3, 3.0])
@pytest.mark.parametrize(
    ("rho", "skew", "least"), [(0.0, 0.0, 0.93), (0.0, 0.8, 0.93), (0.3, 0.0, 0.88), (0.5, 0.6, 0.85)]
)
def test_coverage_survives_the_stop_rule(
    rho: float, skew: float, least: float, truth: float, enough: Callable[[list[float]], bool]
) -> None:
    """Noise with a memory, lopsided noise, and looking again and again: the printed interval still holds the truth."""
    rng, covered, runs = random.Random(7), 0, 250
    for _ in range(runs):
        noise, values = moods(rng, rho, skew, rng.choice((0.01, 0.03))), []
        while len(values) < 130 and not (values and enough(values)):
            values.append(truth * next(noise))
        low, high = interval(values)
        covered += low <= truth <= high
    assert covered / runs >= least, covered / runs


def test_dependence_widens_the_interval() -> None:
    rng = random.Random(2)
    noise = moods(rng, 0.8, 0.0, 0.02)
    moody = [next(noise) for _ in range(120)]
    shuffled = rng.sample(moody, len(moody))
    assert dependence(moody) > 2.5 > 2.0 > dependence(shuffled)
    wide, narrow = interval(moody), interval(shuffled)
    assert wide[1] - wide[0] > 1.3 * (narrow[1] - narrow[0])


def test_stop_rule_waits_for_rounds_and_width() -> None:
    steady = [1.5] * 19
    assert not timing.is_settled(steady[:9]) and timing.is_settled(steady[:13])
    assert not timing.is_settled(steady[:14]), "14 is no checkpoint"
    rng = random.Random(1)
    assert not timing.is_settled([rng.gauss(1.5, 0.3) for _ in range(19)])


def test_a_decision_needs_the_milestone_to_be_clear() -> None:
    assert pytest.approx(1 / (1 - MARGIN)) == timing.MILESTONE_RATIO
    rng = random.Random(3)
    noise = [1 + rng.uniform(-0.04, 0.04) for _ in range(19)]
    for truth, clear in ((2.0, True), (0.9, True), (1 / (1 - MARGIN), False)):
        values = [truth * value for value in noise]
        assert not timing.is_settled(values) and timing.is_decided(values) is clear


def test_a_search_s_turn_is_as_uncertain_as_its_distance_to_the_milestone() -> None:
    """±10 % at 3x is enough for a turn, not for a verdict; near the milestone nothing is gained."""
    rng = random.Random(4)
    noise = [1 + rng.uniform(-0.2, 0.2) for _ in range(28)]
    for truth, coarse in ((3.0, True), (1.2, False), (0.3, True)):
        values = [truth * value for value in noise]
        assert not timing.is_decided(values) and timing.is_decided(values, coarse=True) is coarse


def test_record_of_an_honest_program() -> None:
    rng = random.Random(3)
    rounds = [draw_round(rng, {"candidate": 100.0, "eager": 150.0}, 0.01) for _ in range(9)]
    record = timing.timing(rounds, "candidate", queued_us=90.0)
    assert 90 < record.low_us <= record.latency_us <= record.high_us < 125
    assert record.repetitions == 36 and len(record.samples_us) == 9 and record.queued_us == 90.0
    assert timing.disagreement(rounds, "candidate", Device.CUDA) is None


@pytest.mark.parametrize("device", [Device.CUDA, Device.CPU])
def test_hidden_work_is_seen_and_pays(device: Device) -> None:
    rng = random.Random(4)
    rounds = [draw_round(rng, {"candidate": 100.0, "eager": 150.0}, 0.01, hidden_us=150.0) for _ in range(9)]
    reason = timing.disagreement(rounds, "candidate", device)
    assert reason is not None and "µs per call" in reason
    record = timing.timing(rounds, "candidate")
    assert record.latency_us > 200
    assert timing.ratio(rounds, "eager", "candidate").value < 0.8
    assert timing.disagreement(rounds, "eager", device) is None


def test_one_round_claims_nothing() -> None:
    one = [Round({"candidate": Burst((100.0,), 100.0), "eager": Burst((150.0,), 150.0)})]
    found = timing.ratio(one, "eager", "candidate")
    assert found.low < 1.4 and found.high > 1.6 and found.value == 1.5


def test_uneven_events_pay_their_mean() -> None:
    """Time moved into fewer than half of a burst's calls leaves the median small; the witness' mean isn't fooled."""
    events = (1.0, 1.0, 1.0, 397.0)
    rounds = [Round({"candidate": Burst(events, 700.0)}, null=Burst((1.0,) * 4, 300.0)) for _ in range(6)]
    assert timing.medians(rounds, "candidate")[0] == 1.0
    assert timing.timing(rounds, "candidate").latency_us == pytest.approx(100.0)


def test_foreign_load_does_not_convict() -> None:
    """Preempted calls are slow in the events and on the wall alike."""
    rng = random.Random(5)
    rounds = []
    for _ in range(12):
        events = [100.0 + (4000.0 if rng.random() < 0.3 else 0.0) for _ in range(6)]
        rounds.append(Round({"candidate": Burst(tuple(events), sum(events) + 400)}, null=Burst((1.0,) * 6, 300.0)))
    assert timing.disagreement(rounds, "candidate", Device.CPU) is None
    assert timing.disagreement(rounds, "candidate", Device.CUDA) is not None, (
        "100 µs unexplained of 6 calls is 17 µs each"
    )


def test_trusted_programs_excuse_what_the_machine_does() -> None:
    def both(candidate_extra_us: float) -> list[Round]:
        bursts = {"candidate": Burst((100.0,), 400.0 + candidate_extra_us), "eager": Burst((200.0,), 540.0)}
        return [Round(bursts, null=Burst((1.0,), 300.0)) for _ in range(6)]

    assert timing.disagreement(both(30.0), "candidate", Device.CUDA) is not None
    assert timing.disagreement(both(30.0), "candidate", Device.CUDA, ["eager"]) is None
    assert timing.disagreement(both(90.0), "candidate", Device.CUDA, ["eager"]) is not None
    assert timing.disagreement(both(90.0)[:4], "candidate", Device.CUDA, ["eager"]) is None, "too few rounds"


def test_witness_needs_a_null() -> None:
    rounds = [Round({"candidate": Burst((10.0,), 900.0)})]
    assert timing.witness(rounds, "candidate") is None
    assert timing.timing(rounds, "candidate").witness_low_us is None


def on_a_gpu(
    rng: random.Random,
    count: int,
    true_us: float,
    *,
    says: float = 1.0,
    says_waited: float = 1.0,
    waits_us: float = 8.0,
    hidden_us: float = 0.0,
) -> list[Round]:
    """Rounds of 32 calls on a GPU: a call costs 40 µs outside its events, of which a worker waits 8 µs (a captured
    graph 30 µs). The candidate `says` a share of its events and of its waiting, and hides some µs a call."""
    found, calls = [], 32
    for _ in range(count):
        mood = rng.choice((1.0, 1.0, 1.2))

        def burst(
            us: float,
            waits: float,
            says: float = 1.0,
            says_waited: float = 1.0,
            hidden: float = 0.0,
            mood: float = mood,
        ) -> Burst:
            events = [us * mood * rng.gauss(1.0, 0.03) for _ in range(calls)]
            outside = 40.0 * mood * calls + rng.gauss(0, 60)
            wall = sum(events) + outside + (waits + hidden) * calls
            return Burst(tuple(us * says for us in events), wall, waits * says_waited)

        bursts = {name: burst(us, 8.0) for name, us in (("eager", 50.0), ("compile", 90.0))}
        bursts["graphs"] = burst(160.0, 30.0)
        bursts["candidate"] = burst(true_us, waits_us, says, says_waited, hidden_us)
        found.append(Round(bursts, null=burst(4.0, 5.0)))
    return found


TRUSTED = ("eager", "compile", "graphs")


def test_giving_memory_back_pays_and_does_not_convict() -> None:
    """The driver frees while somebody waits: 50 µs a call beyond the events, as the worker says itself."""
    rounds = on_a_gpu(random.Random(1), 20, 100.0, waits_us=58.0)
    assert timing.disagreement(rounds, "candidate", Device.CUDA, TRUSTED) is None
    assert timing.timing(rounds, "candidate", trusted=TRUSTED).latency_us == pytest.approx(155, abs=15)
    silent = on_a_gpu(random.Random(1), 20, 100.0, waits_us=58.0, says_waited=8 / 58)
    assert timing.disagreement(silent, "candidate", Device.CUDA, TRUSTED) is not None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("says", "says_waited"),
    [(0.25, 0.25), (0.25, 1.0), (1e-4, 0.0), (1e-4, 4.0)],
    ids=["slow", "half", "none", "excuse"],
)
def test_a_short_lie_is_seen_beside_a_program_that_waits_long(says: float, says_waited: float, seed: int) -> None:
    rounds = on_a_gpu(random.Random(seed), 20, 24.0, says=says, says_waited=says_waited)
    assert timing.disagreement(rounds, "candidate", Device.CUDA, TRUSTED) is not None


@pytest.mark.parametrize("true_us", [8.0, 24.0, 400.0])
def test_what_the_tolerance_forgives_is_not_paid(true_us: float) -> None:
    honest, hiding = [
        timing.ratio(on_a_gpu(random.Random(3), 40, true_us, hidden_us=hidden), "eager", "candidate", TRUSTED)
        for hidden in (0.0, 4.0 + 0.05 * true_us)
    ]
    assert honest.low > (0.75 if true_us < 10 else 0.9) * honest.value, "an honest one loses little"
    assert hiding.low < 1.02 * 50.0 / (true_us * 1.05 + 4.0)


def test_a_core_that_wakes_late_costs_nobody() -> None:
    """What a synchronisation takes differs from round to round, for all programs alike."""
    rounds = on_a_gpu(random.Random(4), 40, 24.0)
    usual = timing.ratio(rounds, "eager", "candidate", TRUSTED)
    for index, found in enumerate(rounds):
        late = 12.0 * (index % 2)
        found.bursts = {
            name: replace(one, wall_us=one.wall_us + 32 * late, waited_us=one.waited_us + late)
            for name, one in found.bursts.items()
        }
    assert timing.ratio(rounds, "eager", "candidate", TRUSTED).low == pytest.approx(usual.low, rel=0.01)


def test_no_honest_short_program_is_convicted() -> None:
    for seed in range(60):
        rounds = on_a_gpu(random.Random(seed), 13, 8.0)
        assert timing.disagreement(rounds, "candidate", Device.CUDA, TRUSTED) is None


@pytest.mark.parametrize(("says", "lies"), [(0.3, True), (0.6, True), (1.0, False)])
def test_events_below_those_of_nothing_are_a_lie(says: float, lies: bool) -> None:
    """Also where the judge's own clock finds nothing."""
    rounds = on_a_gpu(random.Random(5), 20, 4.5, says=says)
    for found in rounds:
        burst = found.bursts["candidate"]
        found.bursts["candidate"] = replace(burst, wall_us=sum(burst.event_us) + 45.0 * 32)
    assert (timing.disagreement(rounds, "candidate", Device.CUDA, TRUSTED) is not None) is lies


def test_a_trusted_program_of_a_few_rounds_excuses_nobody() -> None:
    rounds = on_a_gpu(random.Random(6), 40, 24.0, says=1e-4, says_waited=0.0)
    for index, found in enumerate(rounds):
        slow = found.bursts.pop("graphs")
        if index < 6:
            found.bursts["graphs"] = replace(slow, wall_us=slow.wall_us + 40.0 * 32)
    for found in rounds:
        # Far enough above nothing that only the judge's clock can tell.
        burst = found.bursts["candidate"]
        found.bursts["candidate"] = replace(burst, event_us=(4.5,) * 32, wall_us=burst.wall_us)
    assert timing.disagreement(rounds, "candidate", Device.CUDA, TRUSTED) is not None


def test_a_claim_of_no_time_at_all_still_has_an_interval() -> None:
    rounds = on_a_gpu(random.Random(2), 20, 24.0, says=1e-5)
    found = timing.ratio(rounds[:4], "eager", "candidate"), timing.ratio(rounds, "eager", "candidate", TRUSTED)
    assert all(0 < each.low <= each.value <= each.high for each in found)
