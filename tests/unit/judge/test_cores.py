"""Which cores a holder keeps to."""

from __future__ import annotations

import pytest

from cuda_agent.judge.cores import share


@pytest.mark.parametrize("count", [2, 4, 8])
def test_holders_share_every_part_of_the_machine(count: int) -> None:
    cores = set(range(96))
    shares = [share(cores, number, count) for number in range(count)]
    assert set().union(*shares) == cores and sum(map(len, shares)) == 96
    for mine in shares:
        assert len(mine & set(range(48))) == 48 // count, "on either side"
        # Threads of one core are neighbours here, half of all apart there.
        assert {core ^ 1 for core in mine} == mine == {(core + 48) % 96 for core in mine}


def test_where_cores_are_few_all_have_all() -> None:
    assert share({0, 1, 2, 3, 4, 5, 6, 7}, 1, 2) == set(range(8))
    assert all(share(set(range(22)), number, 4) == set(range(22)) for number in range(4)), "uneven"
    assert share(set(range(4)), 0, 1) == set(range(4))
