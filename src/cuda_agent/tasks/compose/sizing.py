"""Finds sizes for a time: a chain's unknowns are drawn, then scaled until the predicted eager time is near the wanted
one."""

import math
import random
from dataclasses import dataclass

from cuda_agent.core.record import Record
from cuda_agent.tasks.compose import sizes as natural
from cuda_agent.tasks.compose.chain import ChainStep, Plan, solve
from cuda_agent.tasks.compose.layouts import Unsolvable
from cuda_agent.tasks.compose.rates import H200, Rates
from cuda_agent.tasks.records import Cost

_CLOSE = 1.25
#: Above 1, shorter times are drawn more often than longer ones.
_LEAN = 1.6
_TURNS = 16
#: Factors on the usual bounds: some tasks have small batches of large tensors, and some large batches of small ones.
_WIDTHS = (0.25, 0.5, 1.0, 1.0)
#: The largest factor of a size in one turn, so that several sizes grow.
_LARGEST_STEP = 4.0


class Target(Record):
    """The window of predicted eager times in milliseconds, the memory of one pass, and the stack."""

    low_ms: float = 1.5
    high_ms: float = 70.0
    memory_gb: float = 8.0
    rates: Rates = H200

    def draw_us(self, rng: random.Random) -> float:
        """Draws a time from the window: log-uniform, with longer times somewhat less frequent."""
        reach: float = math.log(self.high_ms / self.low_ms) * rng.random() ** _LEAN
        return 1000 * self.low_ms * math.exp(reach)


@dataclass(frozen=True)
class Sized:
    """A chain with its sizes. `named` has the word of each unknown."""

    plan: Plan
    sizes: dict[tuple[int, str], int]
    named: dict[tuple[int, str], str]
    steps: tuple[ChainStep, ...]
    cost: Cost


def fit(plan: Plan, target: Target, wanted_us: float, rng: random.Random, *, strict: bool = False) -> Sized:
    """Returns the chain at sizes whose predicted time is near the wanted one. If memory doesn't allow that, it is near
    another time from the window, or with `strict` there is none. Raises Unsolvable when no such sizes were found, or
    the operators don't follow each other."""
    named = natural.words(plan)
    sizes = _first(plan, named, rng)
    order, reaches = natural.scalable(named, rng), natural.reaches(named)
    width = rng.choice(_WIDTHS)
    best: Sized | None = None
    for turn in range(_TURNS):
        steps = solve(plan, sizes)
        cost = target.rates.cost(steps)
        room = target.memory_gb * 1e9 / cost.held_bytes
        if turn == 0:
            if strict and cost.predicted_us * room < wanted_us:
                raise Unsolvable("memory doesn't let it take so long")
            wanted_us = _within(target, wanted_us, cost.predicted_us * room, rng)
        if room >= 1 and (best is None or _apart(cost, wanted_us) < _apart(best.cost, wanted_us)):
            best = Sized(plan, dict(sizes), named, steps, cost)
        if best is not None and _apart(best.cost, wanted_us) < math.log(_CLOSE):
            break
        factor = min(wanted_us / cost.predicted_us, room if room >= 1 else 0.8 * room)
        if not _scale(sizes, reaches, order, min(max(factor, 1 / _LARGEST_STEP), _LARGEST_STEP), width, rng):
            break
    if best is None or not target.low_ms <= best.cost.predicted_us / 1000 <= target.high_ms:
        raise Unsolvable("no sizes for this time")
    return best


def _first(plan: Plan, named: dict[tuple[int, str], str], rng: random.Random) -> dict[tuple[int, str], int]:
    """Returns the drawn sizes of the unknowns; images are square."""
    found: dict[tuple[int, str], int] = {}
    height = None
    for key, word in named.items():
        position, name = key
        if word == "width" and height is not None:
            found[key] = height
            continue
        found[key] = natural.draw(plan.links[position].seed, name, word, rng)
        if word == "height":
            height = found[key]
    return found


def _within(target: Target, wanted_us: float, reach_us: float, rng: random.Random) -> float:
    """Returns the wanted time, or a drawn one within what memory allows (if time grows in proportion to memory)."""
    if wanted_us <= reach_us:
        return wanted_us
    low_us = target.low_ms * 1000
    return math.exp(rng.uniform(math.log(low_us), math.log(max(low_us * 1.1, reach_us))))


def _apart(cost: Cost, wanted_us: float) -> float:
    return abs(math.log(cost.predicted_us / wanted_us))


def _scale(
    sizes: dict[tuple[int, str], int],
    reaches: dict[tuple[int, str], str],
    order: list[tuple[tuple[int, str], ...]],
    factor: float,
    width: float,
    rng: random.Random,
) -> bool:
    """Scales the first group that can still change, which then moves to the end. Returns False when none can."""
    for bound in (width, 1.0, 0.0):
        for group in list(order):
            part = factor ** (1 / len(group))
            moved = {key: natural.scaled(sizes[key], part, reaches[key], rng, width=bound) for key in group}
            if len({sizes[key] for key in group}) == 1:
                moved = dict.fromkeys(group, next(iter(moved.values())))
            if all(_moves(sizes[key], moved[key], part) for key in group):
                sizes.update(moved)
                order.append(order.pop(order.index(group)))
                return True
    return False


def _moves(size: int, moved: int, factor: float) -> bool:
    """Returns whether the size changes in the wanted direction by more than rounding."""
    return moved > size * 1.05 if factor > 1 else moved < size / 1.05
