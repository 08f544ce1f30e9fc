from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.tasks.compose.schedule import PUBLISHED_SHARES, OperatorSchedule

SCHEDULE = OperatorSchedule()


def test_the_published_shares_add_up() -> None:
    assert round(sum(PUBLISHED_SHARES.values()), 6) == 100


@given(st.integers(1, 6000))
def test_every_prefix_has_the_shares_up_to_rounding(total: int) -> None:
    counts = Counter(SCHEDULE.kind(number) for number in range(total))
    for kind, share in PUBLISHED_SHARES.items():
        assert abs(counts[kind] - total * share / 100) <= 1


def test_a_number_does_not_depend_on_how_many_are_asked_for() -> None:
    assert OperatorSchedule().kind(500) == [OperatorSchedule().kind(number) for number in range(600)][500]
