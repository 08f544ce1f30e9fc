"""The composer that needs no model: draws operators by the schedule, chains and sizes them, writes the module."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

from cuda_agent.core.errors import TaskError
from cuda_agent.core.records import Task
from cuda_agent.tasks.compose.affinity import affinity, commonness, domain, importance, role, suits
from cuda_agent.tasks.compose.chain import Link, Plan
from cuda_agent.tasks.compose.emission import emit
from cuda_agent.tasks.compose.layouts import Unsolvable
from cuda_agent.tasks.compose.naming import name
from cuda_agent.tasks.compose.schedule import Schedule
from cuda_agent.tasks.compose.sizes import lead_for
from cuda_agent.tasks.compose.sizing import Sized, Target, fit
from cuda_agent.tasks.records import DatasetTask, Seed

_ATTEMPTS = 400
#: no seed may stand in more than this part of the tasks.
_MOST = 0.04
_GRACE = 5
#: tasks of the same operators in the same order: more would be the same problem at other sizes.
_ALIKE = 3
#: settings that are chosen together, by their place: both bounds, or kernel and stride.
_TIED = frozenset((
    "clamp", "hardtanh", "unfold", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "threshold",
))  # fmt: skip


class BuiltinComposer:
    """`Composer` over seeds. What it makes for a number depends on the seeds, its seed number, the target, and the
    tasks before, which it is told in order."""

    name = "builtin"

    def __init__(self, seeds: Sequence[Seed], seed: int, target: Target) -> None:
        self._seed, self._target = seed, target
        self._torch = [item for item in seeds if item.library == "torch"]
        self._transformers = [item for item in seeds if item.library == "transformers"]
        self._schedule = Schedule()
        self._used: Counter[str] = Counter()
        self._alike: Counter[tuple[str, ...]] = Counter()
        self._texts: set[str] = set()
        self._made = 0
        self._common = _shares(seeds)

    def tell(self, task: DatasetTask) -> None:
        """A task that stands: its seeds count as used, and its text isn't written again."""
        self._used.update(set(task.ops))
        self._alike[task.task.operators] += 1
        self._texts.add(task.task.source)
        self._made += 1

    def compose(self, number: int) -> DatasetTask:
        """Task `number`. Raises TaskError when the seeds allow none."""
        rng = random.Random(f"{self._seed}:{number}")
        count = self._schedule.kind(number)
        why = "no seeds"
        for _ in range(_ATTEMPTS):
            try:
                plan = self._plan(count, rng)
                if self._alike[tuple(link.seed.operator for link in plan.links)] >= _ALIKE:
                    raise Unsolvable("every chain was drawn often enough")
                sized = fit(plan, self._target, rng)
                names = name(sized)
            except Unsolvable as error:
                why = str(error)
                continue
            source = emit(sized, names, rng)
            if source not in self._texts:
                return self._task(number, sized, source)
        raise TaskError(f"No task of {count or 1} operators in {_ATTEMPTS} attempts ({why})", "Give more seeds")

    def _task(self, number: int, sized: Sized, source: str) -> DatasetTask:
        seeds = [link.seed for link in sized.plan.links]
        operators = tuple(seed.operator for seed in seeds)
        origin = f"{seeds[0].library}#{len(seeds)}"
        title = "_".join(operator.replace(" ", "_") for operator in operators)
        task = Task(name=f"{number:05d}_{title}", source=source, origin=origin, operators=operators)
        ops = tuple(seed.name for seed in seeds)
        return DatasetTask(task=task, ops=ops, composer=self.name, number=number, cost=sized.cost)

    def _plan(self, count: int, rng: random.Random) -> Plan:
        """Operators, grown from the one that the task is built around. Raises Unsolvable at a dead end."""
        seeds = self._transformers if count == 0 else self._torch
        if not seeds:
            raise Unsolvable("no seeds of this library")
        chain = [self._draw(seeds, [self._weight(seed) * importance(role(seed)) for seed in seeds], rng)]
        while len(chain) < count:
            after = rng.random() < 0.6
            options = self._neighbours(chain, after) or self._neighbours(chain, not after)
            if not options:
                raise Unsolvable("nothing goes with it")
            side, weights = options
            found = self._draw(self._torch, weights, rng)
            chain = [*chain, found] if side else [found, *chain]
        flowing = domain(chain)
        links = tuple(Link(seed, _choices(seed, flowing, seed is chain[-1], rng)) for seed in chain)
        first = chain[0].ports[0].layout
        lead = lead_for(first, chain[1:], rng) if first.startswith("*") else ()
        if first.startswith("* ") and not lead:
            raise Unsolvable("a single row")
        return Plan(links, lead)

    def _neighbours(self, chain: Sequence[Seed], after: bool) -> tuple[bool, list[float]] | None:
        """Weights of all seeds to stand after the chain, or before it; None when none fits."""
        end = chain[-1] if after else chain[0]
        inside = {seed.operator for seed in chain}
        flowing = domain(chain)
        weights = []
        for seed in self._torch:
            likes = (affinity(end, seed) if after else affinity(seed, end)) * suits(seed, flowing)
            if likes and domain((seed,)) != "rows":
                likes *= min(suits(item, domain((seed,))) for item in chain)
            again = seed.operator in inside and role(seed) not in ("matrix product", "convolution", "activation")
            weights.append(0.0 if again else likes * self._weight(seed))
        return (after, weights) if any(weights) else None

    def _weight(self, seed: Seed) -> float:
        """Its share of its role, somewhat less where it was used more than that; 0 where it was used too much."""
        used = self._used[seed.name]
        if used > _GRACE + _MOST * self._made:
            return 0.0
        average = sum(self._used.values()) / max(1, len(self._torch) + len(self._transformers))
        return self._common[id(seed)] / math.sqrt(1.0 + used / (1.0 + average))

    @staticmethod
    def _draw(seeds: Sequence[Seed], weights: Sequence[float], rng: random.Random) -> Seed:
        if not any(weights):
            raise Unsolvable("every seed is used up")
        return rng.choices(seeds, weights)[0]


def _shares(seeds: Sequence[Seed]) -> dict[int, float]:
    """By identity, each seed's share of its role: by how common its operator is, however many spellings that has."""
    spellings = Counter((seed.library, seed.operator) for seed in seeds)
    weights = [commonness(seed) / math.sqrt(spellings[seed.library, seed.operator]) for seed in seeds]
    totals: dict[str, float] = {}
    for seed, weight in zip(seeds, weights, strict=True):
        totals[role(seed)] = totals.get(role(seed), 0.0) + weight
    return {id(seed): weight / totals[role(seed)] for seed, weight in zip(seeds, weights, strict=True)}


def _choices(seed: Seed, flowing: str, last: bool, rng: random.Random) -> tuple[str, ...]:
    """One expression for each parameter; the first of its choices, which is the usual one, more often. Settings that
    belong together, such as two bounds, are chosen together."""
    together = rng.randrange(8) if seed.operator in _TIED else None
    found = []
    for item in seed.parameters:
        weights = [2.0] + [1.0] * (len(item.choices) - 1)
        if item.name == "dim" and "1" in item.choices:
            weights = [8.0 if (choice == "1") == (flowing != "rows") else 1.0 for choice in item.choices]
        elif item.name == "keepdim":
            weights = [1.0 if last or choice == "False" else 0.0 for choice in item.choices]
        elif item.name == "stride" and role(seed) == "pooling":
            weights = [5.0] + [1.0] * (len(item.choices) - 1)
        if together is not None:
            found.append(item.choices[together % len(item.choices)])
        else:
            found.append(rng.choices(item.choices, weights)[0])
    return tuple(found)
