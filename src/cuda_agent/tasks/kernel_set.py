"""The tasks of preset `kernel`: small ones that a model can answer with one file.

They are the data set's element-wise, reduction and normalisation tasks at smaller sizes, and written families in which
a plain kernel beats `torch.compile`. `origin` of a task is its family. Held out (split `validation`) are graphs of
operators that all occur in training, and graphs with an operator that never does.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from cuda_agent.core.assets import filled, tables, words
from cuda_agent.core.enums import Device, Precision, SandboxLevel
from cuda_agent.core.errors import NotCovered
from cuda_agent.core.records import Task
from cuda_agent.judge import error_floor
from cuda_agent.playbook.single_file import SingleFile
from cuda_agent.tasks.captured import NotCaptured, capture_checked, task_workers
from cuda_agent.tasks.dataset.export import write_table
from cuda_agent.tasks.dataset.importing import split_of
from cuda_agent.tasks.decontaminate.graphhash import graph_hash, graph_operators
from cuda_agent.tasks.decontaminate.references import EvaluationTask
from cuda_agent.tasks.decontaminate.stage import compare
from cuda_agent.tasks.records import DatasetTask, Measurement
from cuda_agent.workers.process import Worker

TRAIN, HELD_OUT = "train", "validation"
#: The bytes that a task of the data set moves in eager, some 0.1 ms on an H100, and for its check on the CPU.
_MOVED, _CHECKED = 256e6, 4e6
_SMALL = {"ROWS": 96, "FEATURES": 160, "COLUMNS": 128}
#: The held-out tasks of either kind.
OF_A_KIND = 24
_SIZES = re.compile(r"^([A-Z_]+(?:, [A-Z_]+)*) = (\d+(?:, \d+)*)$", re.MULTILINE)
_STEP = 100


@dataclass(frozen=True)
class KernelTask:
    """A task, and the same program at sizes for its check on the CPU, which finds `graph` and `operators`. `split` is
    the data set's, None for a written task."""

    task: DatasetTask
    small: str
    split: str | None = None
    graph: str = ""
    operators: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        return self.task.task.origin


def family_of(operators: Iterable[str], count: int) -> str | None:
    """Returns the family of a task of `count` operators with these in its graph, None if it has others."""
    kinds = {name: set(words(__file__, name)) for name in ("normalisation", "reduction", "elementwise")}
    own = set(operators) - set(words(__file__, "structure"))
    if not own or own - set().union(*kinds.values()):
        return None
    return "one operator" if count == 1 else next(name for name, kind in kinds.items() if own & kind)


def shrunk(source: str, factor: float) -> tuple[str, float]:
    """Returns the source with its first sizes halved, as far as they allow, until at most this part of its elements is
    left; and the part."""
    found, part = _SIZES.search(source), 1.0
    if found is None:
        return source, part
    names, sizes = found[1].split(", "), [int(size) for size in found[2].split(", ")]
    able = [place for place, name in enumerate(names) if name in words(__file__, "shrinking")]
    while part > factor and (place := next((n for n in able if sizes[n] >= 4 and sizes[n] % 2 == 0), None)) is not None:
        sizes[place] //= 2
        part /= 2
    return f"{source[: found.start(2)]}{', '.join(map(str, sizes))}{source[found.end() :]}", part


def of_dataset(tasks: Sequence[DatasetTask], measured: Mapping[str, Measurement]) -> Iterator[KernelTask]:
    """Yields the data set's tasks of the families, except those whose sizes can't shrink so far."""
    for given in tasks:
        family = family_of(measured[given.task.key].graph_operators, len(given.ops))
        if family is None or given.cost is None:
            continue
        source, part = shrunk(given.task.source, _MOVED / given.cost.bytes)
        moved = part * given.cost.bytes
        if moved <= 1.5 * _MOVED:
            task = given.task.model_copy(update={"source": source, "origin": family})
            small, _ = shrunk(source, _CHECKED / moved)
            yield KernelTask(given.model_copy(update={"task": task, "cost": None}), small, given.task.split)


def written(seed: int) -> Iterator[KernelTask]:
    """Yields the tasks of the written families."""
    for family, about in tables(__file__)["families"].items():
        rng = random.Random(f"{seed}/{family}")
        before, after = about["around"]
        chains: dict[tuple[str, ...], str] = {}
        while len(chains) < about["tasks"]:
            steps = rng.sample(tables(__file__)["steps"], before + after)
            middle = rng.choice(list(about["middles"]))
            chains[*steps[:before], middle, *steps[before:]] = middle
        for number, (lines, middle) in enumerate(chains.items()):
            sizes = {name: int(rng.choice(str(choices).split())) for name, choices in about["sizes"].items()}
            source, small = (
                _text(family, lines, about["middles"][middle], chosen)
                for chosen in (sizes, {name: _SMALL[name] for name in sizes})
            )
            task = Task(name=f"{family.replace(' ', '_')}_{number:03d}", source=source, origin=family, operators=lines)
            yield KernelTask(DatasetTask(task=task, ops=lines, composer="families", number=number), small)


def _text(family: str, lines: Sequence[str], inputs: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    template = Path(__file__).with_suffix(".py.j2")
    return filled(template, family=family, lines=lines, inputs=inputs, sizes=sizes)


def checked(
    given: Sequence[KernelTask], level: SandboxLevel, workers: int, say: Callable[[str], None]
) -> list[KernelTask]:
    """Returns the tasks that keep the filter's rules at the small sizes and have the single-file form, each operator
    graph once. The others are reported."""
    with task_workers(Device.CPU, level) as start, ThreadPoolExecutor(workers) as pool:
        shares = [given[place::workers] for place in range(workers)]
        every = [one for share in pool.map(lambda share: _checked(share, start, say), shares) for one in share]
    found = {one.task.task.key: one for one in every}
    first: dict[str, KernelTask] = {}
    for one in given:
        if (seen := found.get(one.task.task.key)) is not None:
            first.setdefault(seen.graph, seen)
    return list(first.values())


def _checked(given: Sequence[KernelTask], start: Callable[[], Worker], say: Callable[[str], None]) -> list[KernelTask]:
    floor = error_floor(Precision.TF32, Device.CPU, 1024, True)
    found = []
    worker = start()
    for number, one in enumerate(given, 1):
        worker = start() if worker.ended else worker
        name = one.task.task.name
        try:
            graph = capture_checked(worker, Task(name=name, source=one.small), floor)
            SingleFile.of(graph, Device.CUDA)
            found.append(replace(one, graph=graph_hash(graph), operators=graph_operators(graph)))
        except (NotCaptured, NotCovered) as reason:
            say(f"{name} is left out: {' '.join(str(reason).split())[:200]}")
        if number % _STEP == 0:
            say(f"{number} of {len(given)} in one of the processes")
    worker.kill()
    return found


def without(given: Sequence[KernelTask], references: Sequence[EvaluationTask]) -> list[KernelTask]:
    """Returns the tasks without those that equal an evaluation task or are too similar to one."""
    if not references:
        return list(given)
    graphs = {one.task.task.key: one.graph for one in given}
    lines = compare([one.task for one in given], graphs, references, against=(), copies=len(given) + 1).lines
    return [one for one, line in zip(given, lines, strict=True) if line.finding is None]


def divide(given: Sequence[KernelTask], seed: int) -> tuple[list[KernelTask], list[KernelTask]]:
    """Returns the tasks to train on, and the held-out ones: as many with an operator that training never has as new
    graphs of operators that it has, each of all families in turn. What the data set keeps from training isn't trained
    on here. Both are in random order."""
    rng = random.Random(seed)
    unseen = set(words(__file__, "unseen"))
    order = rng.sample(given, len(given))
    known = [one for one in order if not unseen & set(one.operators)]
    train = [one for one in known if (one.split or split_of(one.graph)) == TRAIN]
    operators = {name for one in train for name in one.operators}
    new = [one for one in known if one not in train and operators.issuperset(one.operators)]
    unknown = [one for one in order if unseen & set(one.operators)]
    held_out = [*_by_turns(new)[:OF_A_KIND], *_by_turns(unknown)[:OF_A_KIND]]
    return train, rng.sample(held_out, len(held_out))


def _by_turns(tasks: Sequence[KernelTask]) -> list[KernelTask]:
    place: Counter[str] = Counter()
    order = []
    for one in tasks:
        order.append((place[one.family], one))
        place[one.family] += 1
    return [one for _, one in sorted(order, key=lambda pair: pair[0])]


def write(folder: Path, train: Sequence[KernelTask], held_out: Sequence[KernelTask]) -> None:
    """Writes an exported data set. Raises StoreError."""
    for split, tasks in ((TRAIN, train), (HELD_OUT, held_out)):
        rows = [
            {
                "ops": json.dumps(one.task.ops),
                "data_source": one.family,
                "code": one.task.task.source,
                "key": one.task.task.key,
                "name": one.task.task.name,
                "composer": "kernel",
                "number": number,
                "graph_hash": one.graph,
                "graph_operators": json.dumps(one.operators),
                "split": split,
            }
            for number, one in enumerate(tasks)
        ]
        write_table(folder / f"{split}.parquet", rows, tuple(rows[0]))
