"""Which cores a holder keeps to, and which are kept for what is timed."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from cuda_agent.workers import affinity as cores_module
from cuda_agent.workers import gpulock as gpulock_module
from cuda_agent.workers.affinity import Cores, divided, keep_off, kept_for_timing, share


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


def _machine(
    monkeypatch: pytest.MonkeyPatch, folder: Path, threads: list[set[int]], nodes: list[str] | None = None
) -> None:
    """What the system says of it: the threads of each core, and the cores of each node. Its locks are nobody else's."""
    monkeypatch.setattr(gpulock_module, "_SHARED", folder)
    for core in threads:
        for thread in core:
            place = folder / f"cpu/cpu{thread}/topology"
            place.mkdir(parents=True)
            (place / "thread_siblings_list").write_text(",".join(map(str, sorted(core))) + "\n")
    for number, text in enumerate(nodes or []):
        (folder / f"node/node{number}").mkdir(parents=True)
        (folder / f"node/node{number}/cpulist").write_text(text + "\n")
    monkeypatch.setattr(cores_module, "_CPUS", folder / "cpu")
    monkeypatch.setattr(cores_module, "_NODES", folder / "node")


def test_two_whole_cores_are_kept_for_what_is_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, [{core, core + 8} for core in range(8)], ["0-15"])
    with kept_for_timing(set(range(16))) as kept:
        assert kept == {7, 15, 6, 14}, "the first ones serve devices"
        judge, programs = divided(kept)
        assert judge == 6 and programs == {7, 15}, "the other thread of the judge's core is nobody's"


def test_neighbours_are_one_core_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, [])
    with kept_for_timing(set(range(16))) as kept:
        assert kept == {12, 13, 14, 15}
        assert divided(kept) == (12, {14, 15})


def test_every_node_keeps_some(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, [{2 * core, 2 * core + 1} for core in range(16)], ["0-15", "16-31"])
    with kept_for_timing(set(range(32))) as kept:
        assert kept == {12, 13, 14, 15, 28, 29, 30, 31}
        assert divided(kept, near=set(range(16, 32))) == (28, {30, 31}), "those near the device are used"
    with kept_for_timing(set(range(24))) as kept:
        assert kept == {12, 13, 14, 15}, "of a node of which we have few none are kept"


def test_nobody_is_given_the_same_ones_meanwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, [])
    cores = set(range(16))
    with kept_for_timing(cores) as first, kept_for_timing(cores) as second, kept_for_timing(cores) as third:
        assert first == {12, 13, 14, 15} and second == {8, 9, 10, 11}
        assert not third, "others have some, too"
    with kept_for_timing(cores) as again:
        assert again == first


def test_few_cores_are_all_for_everybody() -> None:
    with kept_for_timing(set(range(11))) as kept:
        assert not kept
    assert divided(()) == (None, set()) and divided({5}) == (None, set())
    assert divided({1, 2, 3}, near={7}) == (None, set())


def test_programs_change_between_their_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, [])
    drawn = Cores(random.Random(0), kept={0, 1, 2, 3})
    assert {drawn.pick() for _ in range(50)} <= {2, 3}
    # The machine's counters say that the last round's core has worked.
    ticks = [dict.fromkeys(range(4), (0, 0)), {core: (100 * (core == 1), 100) for core in range(4)}]
    monkeypatch.setattr(cores_module, "core_ticks", lambda: ticks[-1])
    drawn._before = ticks[0]
    assert drawn.pick() in {2, 3}


def test_who_times_has_a_core_for_itself_and_others_keep_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # As many cores of one thread each as there are.
    _machine(monkeypatch, tmp_path, [{core} for core in os.sched_getaffinity(0)])
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        pytest.skip("one core")
    judge, *rest = sorted(mine)
    found: list[set[int]] = []

    def role() -> None:
        keep_off({judge})
        found.append(os.sched_getaffinity(0))
        drawn = Cores(random.Random(0), kept=mine)
        with drawn.timing():
            found.append(os.sched_getaffinity(0))
            with drawn.elsewhere():
                found.append(os.sched_getaffinity(0))
        found.append(os.sched_getaffinity(0))
        keep_off(mine)
        found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=role)
    thread.start()
    thread.join()
    others = set(rest)
    assert found == [others, {judge}, others, others, others], "nobody is left without any"
    assert os.sched_getaffinity(0) == mine, "of other threads nothing changes"
