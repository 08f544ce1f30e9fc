"""The composer without a model: it draws operators by the schedule, chains and sizes them, and writes the module."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache

from cuda_agent.core.errors import TaskError
from cuda_agent.tasks.compose.affinity import (
    affinity,
    commonness,
    domain,
    importance,
    pads,
    role,
    suits,
    suits_time,
)
from cuda_agent.tasks.compose.chain import Link, Plan
from cuda_agent.tasks.compose.emission import emit
from cuda_agent.tasks.compose.layouts import Unsolvable
from cuda_agent.tasks.compose.naming import name
from cuda_agent.tasks.compose.novelty import Novelty
from cuda_agent.tasks.compose.run import dataset_task
from cuda_agent.tasks.compose.schedule import OperatorSchedule
from cuda_agent.tasks.compose.sizes import lead_for
from cuda_agent.tasks.compose.sizing import Target, fit
from cuda_agent.tasks.records import DatasetTask, Seed

_ATTEMPTS = 400
#: The attempts after which another time is drawn, because the remaining chains may not reach the first one.
_PATIENCE = 60
#: The number of these attempts in which a chain is dropped if memory doesn't let it take the wanted time.
_STRICT = 12
#: The largest share of the tasks that may use a seed.
_MOST = 0.04
_GRACE = 5
#: The factor on the weight of an operator that no task uses yet.
_UNUSED = 2.0
#: Operators whose settings are chosen together by their place: both bounds, or kernel and stride.
_TIED = frozenset((
    "clamp", "hardtanh", "unfold", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "threshold",
))  # fmt: skip
#: Operators that ignore elements that are masked by a very low number.
_LOOKING_UP = frozenset(("amax", "max", "logsumexp", "topk", "argmax"))
#: Roles of which a chain may have the same operator again.
_REPEATED = ("matrix product", "convolution", "activation")


class BuiltinComposer:
    """A `Composer` over seeds. Its task for a number depends on the seeds, its seed number, the target, and the earlier
    tasks in order."""

    name = "builtin"

    def __init__(self, seeds: Sequence[Seed], seed: int, target: Target) -> None:
        self._seed, self._target = seed, target
        self._torch = [item for item in seeds if item.library == "torch"]
        self._transformers = [item for item in seeds if item.library == "transformers"]
        self._schedule = OperatorSchedule()
        self._relations = Relations(self._torch)
        self._novelty = Novelty()
        self._used: Counter[str] = Counter()
        self._uses = self._made = 0
        self._common = _shares(seeds)

    def tell(self, task: DatasetTask) -> None:
        """Adds a task of the dataset: its seeds count as used, and neither its chain nor its text is composed again."""
        used = set(task.ops)
        self._used.update(used)
        self._uses += len(used)
        self._novelty.add(task.task.operators, task.task.source)
        self._made += 1

    def compose(self, number: int) -> DatasetTask:
        """Returns task `number`. Raises TaskError when the seeds allow none."""
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
                made = dataset_task(self.name, number, [link.seed for link in plan.links], source)
                return made.model_copy(update={"cost": sized.cost})
            why = "every chain exists already"
        raise TaskError(f"No task of {count or 1} operators in {_ATTEMPTS} attempts ({why})", "Give more seeds")

    def _plan(self, count: int, wanted_us: float, rng: random.Random) -> Plan:
        """Returns operators, beginning with the one that the task is built around. Raises Unsolvable at a dead end."""
        seeds = self._transformers if count == 0 else self._torch
        if not seeds:
            raise Unsolvable("no seeds of this library")
        # A task of this time is built around some roles more often.
        weights = [self._weight(seed) * importance(seed) * suits_time(role(seed), wanted_us) for seed in seeds]
        if count < 2:
            weights = self._only_new(seeds, weights, ())
        chain = [self._draw(seeds, weights, rng)]
        while len(chain) < count:
            after = rng.random() < 0.6
            for side in (after, not after):
                weights = self._neighbours(chain, side, len(chain) + 1 == count)
                if any(weights):
                    break
            else:
                raise Unsolvable("nothing new follows it")
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
        """Returns the weights of all seeds after the chain, or before it. For the last one that is added, only new
        chains have a weight."""
        likes = self._relations.neighbours(chain, after)
        weights = [like and like * self._weight(seed) for like, seed in zip(likes, self._torch, strict=True)]
        return self._only_new(self._torch, weights, chain, after) if last else weights

    def _only_new(
        self, seeds: Sequence[Seed], weights: Sequence[float], chain: Sequence[Seed], after: bool = True
    ) -> list[float]:
        """Returns the weights, with 0 for seeds that would complete a chain that a task already has."""
        known = [item.operator for item in chain]
        fresh: dict[str, bool] = {}
        for operator in {seed.operator for seed, weight in zip(seeds, weights, strict=True) if weight}:
            whole = [*known, operator] if after else [operator, *known]
            fresh[operator] = not self._novelty.has_chain(whole)
        return [weight if weight and fresh[seed.operator] else 0.0 for seed, weight in zip(seeds, weights, strict=True)]

    def _weight(self, seed: Seed) -> float:
        """Returns the seed's share of its role, reduced by its earlier use; 0 where it was used too often."""
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


class Relations:
    """Caches which seeds follow each other, because every chain needs the weights of all of them. Seeds are numbered by
    their place."""

    def __init__(self, seeds: Sequence[Seed]) -> None:
        self._seeds = seeds
        self._domains = [domain((seed,)) for seed in seeds]
        self._again = [role(seed) in _REPEATED for seed in seeds]
        #: (the seed's identity, whether others follow it) -> the affinities of all seeds with it.
        self._affinities: dict[tuple[int, bool], list[float]] = {}
        self._suits = cache(lambda flowing: [suits(seed, flowing) for seed in seeds])

    def neighbours(self, chain: Sequence[Seed], after: bool) -> list[float]:
        """Returns for each seed how well it follows the chain, or precedes it; 0 means never."""
        end = chain[-1] if after else chain[0]
        suiting = self._suits(domain(chain))
        inside = {seed.operator for seed in chain}
        own: dict[str, float] = {}
        found = []
        for place, likes in enumerate(self._affinity(end, after)):
            if likes:
                likes *= suiting[place]
                flowing = self._domains[place]
                if likes and flowing != "rows":
                    if flowing not in own:
                        own[flowing] = min(suits(seed, flowing) for seed in chain)
                    likes *= own[flowing]
                if self._seeds[place].operator in inside and not self._again[place]:
                    likes = 0.0
            found.append(likes)
        return found

    def _affinity(self, end: Seed, after: bool) -> list[float]:
        key = (id(end), after)
        if key not in self._affinities:
            self._affinities[key] = [affinity(end, seed) if after else affinity(seed, end) for seed in self._seeds]
        return self._affinities[key]


def _shares(seeds: Sequence[Seed]) -> dict[int, float]:
    """Returns each seed's share of its role in its library, by its identity. The share depends on how common its
    operator is, and not on the number of its spellings."""
    spellings = Counter((seed.library, seed.operator) for seed in seeds)
    weights = [commonness(seed) / math.sqrt(spellings[seed.library, seed.operator]) for seed in seeds]
    totals: dict[tuple[str, str], float] = {}
    for seed, weight in zip(seeds, weights, strict=True):
        place = (seed.library, role(seed))
        totals[place] = totals.get(place, 0.0) + weight
    return {id(seed): weight / totals[seed.library, role(seed)] for seed, weight in zip(seeds, weights, strict=True)}


def _choices(seed: Seed, flowing: str, before: Seed | None, after: Seed | None, rng: random.Random) -> tuple[str, ...]:
    """Returns one expression for each parameter; the first choice, which is the usual one, is the most frequent.
    Related settings, such as two bounds, are chosen together. A mask before a softmax or a maximum is a very low
    number, and zero elsewhere. A convolution after a padding doesn't pad again."""
    together = rng.randrange(8) if seed.operator in _TIED else None
    found = []
    for item in seed.parameters:
        pooled = item.name == "stride" and role(seed) == "pooling"
        usual = 5.0 if pooled else 3.0 if item.name == "reduction" else 2.0
        weights = [usual] + [1.0] * (len(item.choices) - 1)
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
        if together is not None:
            found.append(item.choices[together % len(item.choices)])
        else:
            found.append(rng.choices(item.choices, weights)[0])
    return tuple(found)
