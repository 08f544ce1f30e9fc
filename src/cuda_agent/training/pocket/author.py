"""The author of the transcripts for the base model. It writes varied scripts over the playbook's offers, with mistakes
and their repair, which are played with the real tools."""

import random
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from pydantic import Field

from cuda_agent.agent.trained import pocket
from cuda_agent.agent.trained.offers import Offer
from cuda_agent.agent.trained.sampler import Sampled
from cuda_agent.core.config import Configuration
from cuda_agent.training.environment.rollout import Rollout


class Shares(Configuration):
    """Shares of the transcripts, or of the places where it can happen, that have …"""

    #: … the playbook's own way: its default plan, settings in order.
    playbook: float = Field(default=0.1, ge=0, le=1)
    #: … a Profile before there is anything to judge.
    nothing_yet: float = Field(default=0.05, ge=0, le=1)
    #: … a compilation of its own before the plan is profiled.
    compiles: float = Field(default=0.4, ge=0, le=1)
    #: … a verification of its own before the first profile of a plan.
    verifies: float = Field(default=0.1, ge=0, le=1)
    #: … an edit that the compiler refuses, and its repair.
    broken: float = Field(default=0.08, ge=0, le=1)
    #: … an edit of a file that was not read, which is refused, and then the reading.
    unread: float = Field(default=0.15, ge=0, le=1)
    #: … a Profile of the plan as it was proposed, before its settings are tried.
    untuned: float = Field(default=0.6, ge=0, le=1)
    #: … the same Profile again, for nothing.
    repeated: float = Field(default=0.1, ge=0, le=1)
    #: … a second plan.
    second_plan: float = Field(default=0.5, ge=0, le=1)
    #: … no Finish: the transcript continues to the limit of turns.
    endless: float = Field(default=0.08, ge=0, le=1)
    #: … everything in one answer.
    single: float = Field(default=0.25, ge=0, le=1)


def script(plans: Sequence[Offer], shares: Shares, rng: random.Random, turns: int) -> list[str]:
    """Returns the calls of a transcript in order, one per turn."""
    if rng.random() < shares.playbook:
        return _playbook(plans, turns)
    moves: list[str] = []
    if rng.random() < shares.nothing_yet:
        moves.append(pocket.call("Profile"))
    for visit in range(2 if rng.random() < shares.second_plan and len(plans) > 1 else 1):
        number = rng.randrange(len(plans)) + 1
        moves.append(pocket.take(number))
        if rng.random() < shares.broken and visit == 0:
            moves += [pocket.read(pocket.BINDING), pocket.breaking(), pocket.call("Compile")]
            moves += [pocket.breaking(repair=True), pocket.call("Compile")]
        elif rng.random() < shares.compiles:
            moves.append(pocket.call("Compile"))
        moves += _tuned(plans[number - 1], shares, rng)
    endless = rng.random() < shares.endless
    return _ended([*moves, *([pocket.call("Profile")] * turns if endless else [])], turns, endless)


def _tuned(plan: Offer, shares: Shares, rng: random.Random) -> list[str]:
    """Returns calls that profile a plan, and random settings of it."""
    moves = [pocket.call("Verify")] if rng.random() < shares.verifies else []
    moves += [pocket.call("Profile")] if rng.random() < shares.untuned or not plan.tunables else []
    held = dict.fromkeys(plan.tunables, 0)
    for number in range(rng.choice((0, 1, 1, 2, 3)) if plan.tunables else 0):
        letter = rng.choice(list(plan.tunables))
        value = rng.choice([v for v in range(plan.tunables[letter]) if v != held[letter]])
        edit = pocket.change(letter, held[letter], value)
        if number == 0:
            moves += [edit, pocket.read(), edit] if rng.random() < shares.unread else [pocket.read(), edit]
        else:
            moves.append(edit)
        held[letter] = value
        moves.append(pocket.call("Profile"))
        if rng.random() < shares.repeated:
            moves.append(pocket.call("Profile"))
    return moves if pocket.call("Profile") in moves else [*moves, pocket.call("Profile")]


def _playbook(plans: Sequence[Offer], turns: int) -> list[str]:
    """Returns calls that profile the default plan's settings in order, as long as there are turns."""
    number = next(index for index, plan in enumerate(plans, 1) if plan.name == "fused")
    plan = plans[number - 1]
    moves = [pocket.take(number), pocket.call("Profile")]
    held = dict.fromkeys(plan.tunables, 0)
    for setting in list(plan.settings())[1:]:
        edits = [pocket.change(letter, held[letter], v) for letter, v in setting.items() if v != held[letter]]
        moves += [*([pocket.read()] if len(moves) == 2 else []), *edits, pocket.call("Profile")]
        held = setting
        if len(moves) >= turns - 2:
            break
    return _ended(moves, turns, False)


def _ended(moves: list[str], turns: int, endless: bool) -> list[str]:
    return moves[:turns] if endless else [*moves[: turns - 1], pocket.finish()]


class Author:
    """Answers for rollouts. The seed and the task determine a rollout's script."""

    def __init__(self, shares: Shares, seed: int, most_single_tokens: int) -> None:
        self._shares, self._seed, self._room = shares, seed, most_single_tokens
        self._scripts: WeakKeyDictionary[Rollout, list[str]] = WeakKeyDictionary()
        self._begun = 0

    def __call__(self, playing: Sequence[Rollout]) -> list[Sampled]:
        return [self._answer(rollout) for rollout in playing]

    def _answer(self, rollout: Rollout) -> Sampled:
        if rollout not in self._scripts:
            self._scripts[rollout] = self._begin(rollout)
        moves = self._scripts[rollout]
        text = moves.pop(0) if moves else pocket.finish()
        ids = rollout.dialogue.encode_turn(text)
        return Sampled(tuple(ids), (0.0,) * len(ids))

    def _begin(self, rollout: Rollout) -> list[str]:
        rng = random.Random(f"{self._seed} {self._begun} {rollout.task.key}")
        self._begun += 1
        plans = rollout.judges.offers(rollout.task)
        if rollout.settings.turns > 1:
            return script(plans, self._shares, rng, rollout.settings.turns)
        moves = script(plans, self._shares, rng, 8)
        while len(rollout.dialogue.encode_turn("".join(moves))) > self._room and len(moves) > 1:
            moves.pop()
        return ["".join(moves)]
