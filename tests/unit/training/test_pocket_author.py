"""Scripts of transcripts: their shares are what is asked for, and they keep to the turns."""

from __future__ import annotations

import random

import pocket_domain as domain
from cuda_agent.agent.trained import pocket
from cuda_agent.agent.trained.offers import offers
from cuda_agent.core.enums import Device, Precision
from cuda_agent.training.pocket.author import Shares, script

PLANS = offers(domain.graph(), Device.CUDA, Precision.TF32, "key")
NONE = dict.fromkeys(Shares.model_fields, 0.0)


def scripts(count: int = 400, turns: int = 10, **shares: float) -> list[list[str]]:
    return [script(PLANS, Shares.parse({**NONE, **shares}), random.Random(n), turns) for n in range(count)]


def share(found: list[list[str]], text: str) -> float:
    return sum(text in moves for moves in found) / len(found)


def test_shares_are_controlled() -> None:
    assert 0.22 < share(scripts(broken=0.3), pocket.breaking()) < 0.38
    assert share(scripts(), pocket.breaking()) == 0.0 == share(scripts(), pocket.call("Compile"))
    assert 0.4 < share(scripts(compiles=0.5), pocket.call("Compile")) < 0.6
    takes = [sum(move in (pocket.take(1), pocket.take(2)) for move in moves) for moves in scripts(second_plan=1.0)]
    assert 1.5 < sum(takes) / len(takes) <= 2.0
    ends = [moves[-1] == pocket.finish() for moves in scripts(endless=0.5)]
    assert 0.4 < sum(ends) / len(ends) < 0.6


def test_plans_and_settings_are_by_chance() -> None:
    found = scripts()
    assert 0.4 < share(found, pocket.take(1)) < 0.6
    first = [move for moves in found for move in moves if move.startswith(pocket.change("a", 0, 1)[:80])]
    assert {move[-20:] for move in first} >= {pocket.change("a", 0, value)[-20:] for value in range(1, 5)}


def test_a_repair_follows_its_break_and_turns_are_kept() -> None:
    for moves in scripts(turns=8, broken=1.0, second_plan=0.5, endless=0.2, playbook=0.2, repeated=0.5):
        assert 1 <= len(moves) <= 8
        if pocket.breaking() in moves[:-2]:
            assert moves[moves.index(pocket.breaking()) + 2] in (pocket.breaking(repair=True), pocket.finish())
        assert moves[-1] == pocket.finish() or len(moves) == 8


def test_the_playbooks_own_way_tries_settings_in_order() -> None:
    moves = scripts(count=1, turns=12, playbook=1.0)[0]
    assert moves.count(pocket.call("Profile")) >= 4 and moves[-1] == pocket.finish()
    edits = [move for move in moves if '"Edit"' in move]
    assert edits[:3] == [pocket.change("a", value, value + 1) for value in range(3)]
