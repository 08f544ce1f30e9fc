"""The rule of turns on the device."""

from __future__ import annotations

from cuda_agent.bench.turns import OVERTAKEN_S, How, Turns


def test_those_who_share_are_together_and_never_beside_one_alone() -> None:
    turns = Turns()
    assert turns.ask(1, How.SHARED, now=0) == [1]
    assert turns.ask(2, How.SHARED, now=1) == [2]
    assert turns.ask(3, How.ALONE, now=2) == []
    assert turns.leave(1, 3) == []
    assert turns.leave(2, 4) == [3]
    assert turns.ask(4, How.SHARED, now=5) == []
    assert turns.leave(3, 6) == [4]


def test_phases() -> None:
    turns = Turns(join_s=2)
    turns.ask(1, How.SHARED, now=0)
    for ticket in (2, 3):
        turns.ask(ticket, How.ALONE, now=1)
    assert turns.ask(4, How.SHARED, now=1.5) == [4], "the phase has just begun"
    assert turns.ask(5, How.SHARED, now=3) == [], "somebody waits to be alone"
    turns.leave(1, 4)
    assert turns.leave(4, 5) == [2]
    assert turns.ask(6, How.ALONE, now=6) == []
    assert turns.leave(2, 7) == [3], "all that waited, one after the other"
    assert turns.ask(7, How.SHARED, now=7) == []
    assert turns.leave(3, 8) == [5, 7], "then all that wait to share, before who came later to be alone"
    assert turns.leave(5, 9) == []
    assert turns.leave(7, 10) == [6]


def test_no_phase_waits_for_who_is_aside() -> None:
    turns = Turns(join_s=2)
    assert turns.ask(1, How.ASIDE, now=0) == [1] and not turns.stops(How.ASIDE)
    assert turns.ask(2, How.SHARED, now=0) == [2]
    assert turns.ask(3, How.ALONE, now=1) == []
    assert turns.ask(4, How.ASIDE, now=4) == [4], "though the phase is closed to those who share"
    assert turns.ask(5, How.SHARED, now=4) == []
    assert turns.leave(2, 5) == [3] and turns.stops(How.ASIDE)
    assert turns.ask(6, How.ASIDE, now=6) == []
    assert turns.leave(3, 7) == [5, 6] and not turns.stops(How.ASIDE)
    assert turns.leave(5, 8) == []
    assert turns.leave(1, 9) == turns.leave(4, 9) == turns.leave(6, 10) == []
    assert turns.seconds == {"alone": 2.0, "shared": 6.0, "aside": 2.0, "idle": 0.0}


def test_one_at_a_time_makes_a_context() -> None:
    turns = Turns()
    assert turns.ask(1, How.WAKING, now=0) == [1]
    assert turns.ask(2, How.WAKING, now=0) == [] and turns.ask(3, How.ASIDE, now=0) == [3]
    assert turns.ask(4, How.ALONE, now=1) == [4] and turns.stops(How.ASIDE)
    turns.hush(4, True, 1)
    assert turns.leave(1, 2) == [], "it was stopped, and has ended"
    assert turns.leave(4, 3) == [2]
    assert turns.leave(2, 4) == turns.leave(3, 4) == []
    assert turns.ask(5, How.WAKING, now=5) == [5]


def test_contexts_are_made_while_nothing_is_on_the_clock() -> None:
    turns = Turns()
    assert turns.ask(1, How.ALONE, now=0) == [1]
    assert turns.ask(2, How.WAKING, now=0) == [2] and turns.ask(3, How.WAKING, now=0) == []
    assert turns.ask(4, How.ASIDE, now=0) == turns.ask(5, How.SHARED, now=0) == []
    assert turns.stops(How.ASIDE) and not turns.stops(How.WAKING)
    assert turns.leave(2, 1) == [3], "the next one"
    assert turns.hush(5, True, 1) == [] and not turns.stops(How.WAKING), "it isn't alone"
    assert turns.hush(1, True, 1) == [] and turns.stops(How.WAKING)
    assert turns.leave(3, 2) == turns.ask(6, How.WAKING, now=2) == []
    assert turns.hush(1, False, 3) == [6] and turns.stops(How.ASIDE)
    assert turns.leave(1, 4) == [4, 5]
    assert turns.leave(6, 5) == turns.leave(4, 5) == [] and turns.leave(5, 5) == []
    assert turns.ask(7, How.ALONE, now=6) == [7] and turns.hush(7, True, 6) == [] and turns.leave(7, 7) == []
    assert turns.ask(8, How.ALONE, now=8) == [8] and turns.ask(9, How.WAKING, now=8) == [9], "it has hushed nobody yet"


def test_who_began_first_comes_first() -> None:
    turns = Turns(room=10)
    turns.ask(1, How.ALONE, now=0)
    turns.hush(1, True, 0)
    for ticket, how in ((2, How.ALONE), (3, How.ALONE), (4, How.WAKING), (5, How.WAKING)):
        assert turns.ask(ticket, how, rank=-ticket, now=0) == []
    for ticket in (6, 7):
        assert turns.ask(ticket, How.SHARED, needed=6, rank=-ticket, now=0) == []
    assert turns.leave(1, 1) == [7, 5], "7 before 6, for which there is no room beside it"
    assert turns.leave(5, 2) == [4]
    assert turns.leave(7, 3) == [3]
    assert turns.leave(3, 4) == [2]


def test_who_shares_needs_room() -> None:
    turns = Turns(room=10)
    assert turns.ask(1, How.SHARED, needed=6, now=0) == [1]
    assert turns.ask(2, How.SHARED, needed=6, now=0) == []
    assert turns.ask(3, How.SHARED, needed=4, now=0) == [3], "who has room overtakes"
    assert turns.leave(3, 11) == []
    assert turns.ask(4, How.SHARED, needed=4, now=12) == [], "not for long"
    assert turns.leave(1, 12) == [2, 4]
    assert turns.ask(5, How.SHARED, needed=100, now=13) == turns.leave(2, 14) == []
    assert turns.leave(4, 15) == [5], "with nobody else, however much it needs"


def test_what_an_owner_needs_adds_up() -> None:
    turns = Turns(room=10)
    assert turns.ask(1, How.ASIDE, needed=4, owner=1, now=0) == [1]
    assert turns.ask(2, How.SHARED, needed=8, owner=1, now=0) == [2], "nobody else has the device"
    assert turns.ask(3, How.SHARED, needed=3, owner=2, now=0) == []
    assert turns.ask(4, How.ALONE, now=0) == []
    assert turns.ask(5, How.ASIDE, needed=4, owner=1, now=0) == [5], "its owner may wait for it, and 3 for its owner"
    assert turns.leave(2, 1) == [4], "nobody waits for memory that who is aside holds"
    assert turns.leave(4, 2) == [], "those aside need 8 together"
    assert turns.leave(5, 3) == [3]


def test_who_has_the_device_waits_for_room_beside_others() -> None:
    turns = Turns(room=10)
    assert turns.ask(1, How.SHARED, needed=4, owner=1, now=0) == [1]
    assert turns.ask(2, How.ASIDE, needed=4, owner=2, now=0) == [2]
    assert turns.ask(3, How.ASIDE, needed=4, owner=1, now=1) == []
    assert turns.ask(4, How.SHARED, needed=1, owner=3, now=2) == [4], "who has room overtakes"
    assert turns.leave(2, 3) == [3]
    assert turns.ask(5, How.ASIDE, needed=4, owner=1, now=4) == []
    assert turns.leave(4, 5) == [5], "beside its owner only, whatever that has"


def test_who_has_the_device_waits_for_room_for_a_while() -> None:
    """Each of two shares, and waits for a turn of its own that has no room beside the other."""
    turns = Turns(room=10)
    for owner in (1, 2):
        assert turns.ask(owner, How.SHARED, needed=5, owner=owner, now=0) == [owner]
    assert turns.ask(3, How.ASIDE, needed=5, owner=1, now=1) == turns.ask(4, How.ASIDE, needed=5, owner=2, now=2) == []
    assert turns.look(0.9 + OVERTAKEN_S) == []
    assert turns.look(1 + OVERTAKEN_S) == [3] and turns.look(1 + OVERTAKEN_S) == []
    assert turns.leave(3, 1.1 + OVERTAKEN_S) == []
    assert turns.leave(1, 1.2 + OVERTAKEN_S) == [4], "nobody but its owner is left"
    assert turns.seconds["shared"] == 1.2 + OVERTAKEN_S


def test_who_is_awaited_comes_though_another_one_has_waited_longer() -> None:
    turns = Turns(room=10)
    for owner in (1, 2):
        assert turns.ask(owner, How.SHARED, needed=4, owner=owner, now=0) == [owner]
    assert turns.ask(3, How.SHARED, needed=9, owner=3, now=1) == []
    assert turns.ask(4, How.ASIDE, needed=2, owner=1, now=2 + OVERTAKEN_S) == [], "3 is overtaken no more"
    assert turns.look(2 + 2 * OVERTAKEN_S) == [4]


def test_who_makes_a_context_waits_for_nobody() -> None:
    turns = Turns(room=10)
    assert turns.ask(1, How.SHARED, needed=8, owner=1, now=0) == [1]
    assert turns.ask(2, How.WAKING, owner=2, now=0) == [2]
    assert turns.ask(3, How.SHARED, needed=8, owner=2, now=0) == turns.look(2 * OVERTAKEN_S) == []
    assert turns.leave(1, 3 * OVERTAKEN_S) == [3]


def test_who_needs_nothing_needs_no_room() -> None:
    turns = Turns(room=10)
    assert turns.ask(1, How.SHARED, needed=10, now=0) == [1]
    assert turns.ask(2, How.SHARED, needed=5, now=0) == turns.look(2 * OVERTAKEN_S) == []
    assert turns.ask(3, How.SHARED, now=2 * OVERTAKEN_S) == [3], "it takes nothing from who has waited long"
    assert turns.ask(4, How.SHARED, needed=11, now=2 * OVERTAKEN_S) == []
    assert turns.leave(1, 3 * OVERTAKEN_S) == [2]
    assert turns.leave(2, 3 * OVERTAKEN_S) == [4], "beside one that needs nothing"


def test_room_may_change() -> None:
    turns = Turns(room=10)
    assert turns.ask(1, How.SHARED, needed=8, now=0) == [1]
    turns.room = 5
    assert turns.ask(2, How.SHARED, needed=1, now=0) == []
    turns.room = 9
    assert turns.look(1) == [2]
    assert turns.ask(3, How.SHARED, needed=1, now=1) == []
    turns.room = None
    assert turns.look(2) == [3]


def test_who_has_no_room_beside_one_aside_comes_when_that_ends() -> None:
    turns = Turns(room=10)
    turns.ask(1, How.ASIDE, needed=9, now=0)
    assert turns.ask(2, How.SHARED, needed=9, now=0) == []
    assert turns.ask(3, How.ALONE, now=1) == [3]
    assert turns.leave(3, 2) == []
    assert turns.leave(1, 3) == [2]


def test_who_dies_waiting_is_forgotten() -> None:
    turns = Turns()
    turns.ask(1, How.ALONE, now=0)
    turns.ask(2, How.ALONE, now=0)
    turns.ask(3, How.SHARED, now=0)
    assert turns.leave(2, 1) == []
    assert turns.leave(1, 2) == [3]
    assert turns.seconds == {"alone": 2.0, "shared": 0.0, "aside": 0.0, "idle": 0.0}


def test_so_many_work_on_the_host_at_a_time_whoever_has_the_device() -> None:
    turns = Turns(host_share=2)
    assert turns.ask(1, How.ALONE, now=0) == [1]
    turns.hush(1, True, 0)
    assert turns.ask(2, How.HOST, rank=2, now=1) == [2] and turns.ask(3, How.HOST, rank=3, now=1) == [3]
    assert turns.ask(4, How.HOST, rank=4, now=1) == [] and turns.ask(5, How.HOST, rank=1, now=1) == []
    assert not turns.stops(How.HOST)
    assert turns.leave(3, 2) == [5], "the task that was begun first"
    assert turns.leave(4, 3) == [], "it gave up"
    assert turns.leave(1, 4) == turns.leave(2, 4) == turns.leave(5, 4) == []
    assert turns.seconds["alone"] == 4.0
