"""The composer that needs no model: draws operators by the schedule, chains and sizes them, writes the module."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

from cuda_agent.core.errors import TaskError
from cuda_agent.core.records import Task
from cuda_agent.tasks.compose.affinity import commonness, domain, importance, pads, role, suits_time
from cuda_agent.tasks.compose.chain import Link, Plan
from cuda_agent.tasks.compose.emission import emit
from cuda_agent.tasks.compose.layouts import Unsolvable
from cuda_agent.tasks.compose.naming import name
from cuda_agent.tasks.compose.novelty import Novelty
from cuda_agent.tasks.compose.relations import Relations
from cuda_agent.tasks.compose.schedule import Schedule
from cuda_agent.tasks.compose.sizes import lead_for
from cuda_agent.tasks.compose.sizing import Sized, Target, fit
from cuda_agent.tasks.records import DatasetTask, Seed

_ATTEMPTS = 400
#: after so many another time is wanted: none of the chains that are left may reach the first.
_PATIENCE = 60
#: of these the first are dropped where memory doesn't let them take as long as is wanted.
_STRICT = 12
#: no seed may stand in more than this part of the tasks.
_MOST = 0.04
_GRACE = 5
#: an operator that no task holds yet comes so much sooner.
_UNUSED = 2.0
#: settings that are chosen together, by their place: both bounds, or kernel and stride.
_TIED = frozenset((
    "clamp", "hardtanh", "unfold", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "threshold",
))  # fmt: skip
#: pass over what is masked by a number far below everything.
_LOOKING_UP = frozenset(("amax", "max", "logsumexp", "topk", "argmax"))


class BuiltinComposer:
    """`Composer` over seeds. What it makes for a number depends on the seeds, its seed number, the target, and the
    tasks before, which it is told in order."""

    name = "builtin"

    def __init__(self, seeds: Sequence[Seed], seed: int, target: Target) -> None:
        self._seed, self._target = seed, target
        self._torch = [item for item in seeds if item.library == "torch"]
        self._transformers = [item for item in seeds if item.library == "transformers"]
        self._schedule = Schedule()
        self._relations = Relations(self._torch)
        self._novelty = Novelty()
        self._used: Counter[str] = Counter()
        self._uses = self._made = 0
        self._common = _shares(seeds)

    def tell(self, task: DatasetTask) -> None:
        """A task that stands: its seeds count as used, and neither its chain nor its text is written again."""
        used = set(task.ops)
        self._used.update(used)
        self._uses += len(used)
        self._novelty.add(task.task.operators, task.task.source)
        self._made += 1

    def compose(self, number: int) -> DatasetTask:
        """Task `number`. Raises TaskError when the seeds allow none."""
        rng = random.Random(f"{self._seed}:{number}")
        count = self._schedule.kind(number)
        why = "no seeds"
        wanted_us = 0.0
        for attempt in range(_ATTEMPTS):
            if attempt % _PATIENCE == 0:
                wanted_us = self._target.draw_us(rng)
            try:
                plan = self._plan(count, wanted_us, rng)
                sized = fit(plan, self._target, wanted_us, rng, strict=attempt % _PATIENCE < _STRICT)
                names = name(sized)
            except Unsolvable as error:
                why = str(error)
                continue
            source = emit(sized, names, rng)
            if not self._novelty.has_alike(source):
                return self._task(number, sized, source)
            why = "every chain was drawn before"
        raise TaskError(f"No task of {count or 1} operators in {_ATTEMPTS} attempts ({why})", "Give more seeds")

    def _task(self, number: int, sized: Sized, source: str) -> DatasetTask:
        seeds = [link.seed for link in sized.plan.links]
        operators = tuple(seed.operator for seed in seeds)
        origin = f"{seeds[0].library}#{len(seeds)}"
        title = "_".join(operator.replace(" ", "_") for operator in operators)
        task = Task(name=f"{number:05d}_{title}", source=source, origin=origin, operators=operators)
        ops = tuple(seed.name for seed in seeds)
        return DatasetTask(task=task, ops=ops, composer=self.name, number=number, cost=sized.cost)

    def _plan(self, count: int, wanted_us: float, rng: random.Random) -> Plan:
        """Operators, grown from the one that the task is built around. Raises Unsolvable at a dead end."""
        seeds = self._transformers if count == 0 else self._torch
        if not seeds:
            raise Unsolvable("no seeds of this library")
        weights = [self._weight(seed) * _builds(seed, wanted_us) for seed in seeds]
        if count < 2:
            weights = self._unheard(seeds, weights, ())
        chain = [self._draw(seeds, weights, rng)]
        while len(chain) < count:
            after = rng.random() < 0.6
            for side in (after, not after):
                weights = self._neighbours(chain, side, len(chain) + 1 == count)
                if any(weights):
                    break
            else:
                raise Unsolvable("nothing new goes with it")
            found = self._draw(self._torch, weights, rng)
            chain = [*chain, found] if side else [found, *chain]
        flowing = domain(chain)
        links = tuple(
            Link(seed, _choices(seed, flowing, before, after, rng))
            for before, seed, after in zip([None, *chain], chain, [*chain[1:], None], strict=False)
        )
        first = chain[0].ports[0].layout
        lead = lead_for(first, chain[1:], rng) if first.startswith("*") else ()
        if first.startswith("* ") and not lead:
            raise Unsolvable("a single row")
        return Plan(links, lead)

    def _neighbours(self, chain: Sequence[Seed], after: bool, last: bool) -> list[float]:
        """Weights of all seeds to stand after the chain, or before it; as the last that is added, only those whose
        chain isn't there yet."""
        likes = self._relations.neighbours(chain, after)
        weights = [like and like * self._weight(seed) for like, seed in zip(likes, self._torch, strict=True)]
        return self._unheard(self._torch, weights, chain, after) if last else weights

    def _unheard(
        self, seeds: Sequence[Seed], weights: Sequence[float], chain: Sequence[Seed], after: bool = True
    ) -> list[float]:
        """The weights of those that would end a chain that no task has yet."""
        known = [item.operator for item in chain]
        fresh: dict[str, bool] = {}
        for operator in {seed.operator for seed, weight in zip(seeds, weights, strict=True) if weight}:
            whole = [*known, operator] if after else [operator, *known]
            fresh[operator] = not self._novelty.has_chain(whole)
        return [weight if weight and fresh[seed.operator] else 0.0 for seed, weight in zip(seeds, weights, strict=True)]

    def _weight(self, seed: Seed) -> float:
        """Its share of its role, somewhat less where it was used more than that; 0 where it was used too much."""
        used = self._used[seed.name]
        if used > _GRACE + _MOST * self._made:
            return 0.0
        average = self._uses / max(1, len(self._torch) + len(self._transformers))
        return self._common[id(seed)] * (_UNUSED if not used else 1.0) / math.sqrt(1.0 + used / (1.0 + average))

    @staticmethod
    def _draw(seeds: Sequence[Seed], weights: Sequence[float], rng: random.Random) -> Seed:
        if not any(weights):
            raise Unsolvable("every seed is used up")
        return rng.choices(seeds, weights)[0]


def _shares(seeds: Sequence[Seed]) -> dict[int, float]:
    """By identity, each seed's share of its role in its library: by how common its operator is, however many spellings
    that has."""
    spellings = Counter((seed.library, seed.operator) for seed in seeds)
    weights = [commonness(seed) / math.sqrt(spellings[seed.library, seed.operator]) for seed in seeds]
    totals: dict[tuple[str, str], float] = {}
    for seed, weight in zip(seeds, weights, strict=True):
        place = (seed.library, role(seed))
        totals[place] = totals.get(place, 0.0) + weight
    return {id(seed): weight / totals[seed.library, role(seed)] for seed, weight in zip(seeds, weights, strict=True)}


def _builds(seed: Seed, wanted_us: float) -> float:
    """How often a task of this time is built around the seed's role."""
    return importance(seed) * suits_time(role(seed), wanted_us)


def _choices(seed: Seed, flowing: str, before: Seed | None, after: Seed | None, rng: random.Random) -> tuple[str, ...]:
    """One expression for each parameter; the first of its choices, which is the usual one, more often. Settings that
    belong together, such as two bounds, are chosen together. What is masked before a softmax or a maximum is far below
    everything, and zero elsewhere; what is padded already a convolution doesn't pad again."""
    together = rng.randrange(8) if seed.operator in _TIED else None
    found = []
    for item in seed.parameters:
        weights = [2.0] + [1.0] * (len(item.choices) - 1)
        if item.name == "dim" and "1" in item.choices:
            other = 1.0 if flowing in ("rows", "heads") else 0.0
            weights = [8.0 if (choice == "1") == (flowing != "rows") else other for choice in item.choices]
        elif item.name == "keepdim":
            weights = [1.0 if after is None or choice == "False" else 0.0 for choice in item.choices]
        elif item.name == "value" and seed.operator == "masked_fill" and after is not None:
            hidden = role(after) == "softmax" or after.operator in _LOOKING_UP
            weights = [1.0 if (float(choice) < 0) == hidden else 0.0 for choice in item.choices]
        elif item.name == "padding" and seed.family == "convolution" and pads(seed):
            weights = [0.0, 1.0] if before is not None and role(before) == "padding" else [1.0, 0.0]
        elif item.name == "kernel_size" and (
            "groups={C}" in (seed.constructor or "") or (before is not None and role(before) == "padding")
        ):
            weights = [0.0 if choice == "1" else 1.0 for choice in item.choices]
        elif item.name == "reduction":
            weights = [3.0] + [1.0] * (len(item.choices) - 1)
        elif item.name == "stride" and role(seed) == "pooling":
            weights = [5.0] + [1.0] * (len(item.choices) - 1)
        if together is not None:
            found.append(item.choices[together % len(item.choices)])
        else:
            found.append(rng.choices(item.choices, weights)[0])
    return tuple(found)
