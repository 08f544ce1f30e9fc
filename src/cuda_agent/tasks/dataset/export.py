"""Exports a dataset: one parquet file for each split, and a dataset card. The same tasks give the same bytes."""

import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent.core.assets import filled, tables
from cuda_agent.core.errors import UsageError
from cuda_agent.core.files import write_durably
from cuda_agent.core.record import Record
from cuda_agent.core.stack import Stack
from cuda_agent.tasks.choose import choose as at_published_shares
from cuda_agent.tasks.compose.run import ComposeSettings
from cuda_agent.tasks.compose.schedule import PUBLISHED_SHARES
from cuda_agent.tasks.dataset.folder import graphs_of, read_stages
from cuda_agent.tasks.dataset.importing import SPLITS, is_exported, split_of
from cuda_agent.tasks.decontaminate.reading import arrow
from cuda_agent.tasks.decontaminate.stage import Decontamination
from cuda_agent.tasks.filter.measurements import Measurements
from cuda_agent.tasks.records import DatasetTask, Similarity

#: The name of a column -> its type and its meaning, for the card.
COLUMNS: dict[str, tuple[str, str]] = {name: tuple(about) for name, about in tables(__file__).items()}


class Share(Record):
    """The tasks of one origin, in percent of all, beside the published percent."""

    origin: str
    tasks: int
    percent: float
    published_percent: float


@dataclass(frozen=True)
class Chosen:
    """The tasks that are published, with their records."""

    tasks: list[DatasetTask]
    measured: Measurements
    similarities: dict[str, Similarity]
    account: Decontamination


def choose(folder: Path, *, stack: str | None = None, count: int | None = None) -> Chosen:
    """Returns the tasks that passed every filter and both comparisons, or `count` of them at the published shares.
    Raises UsageError where a stage is missing or too few have passed; StoreError."""
    if is_exported(folder):
        raise UsageError(f"{folder} is an exported dataset", "Give the folder of its stages")
    stages = read_stages(folder, stack)
    if stages.measured is None:
        raise UsageError(f"{folder} has no measurements", f"Run: cuda-agent tasks filter {folder}")
    if stages.similarities is None:
        raise UsageError(f"{folder} was not decontaminated", f"Run: cuda-agent tasks decontaminate {folder}")
    unknown = [task.task.name for task in stages.passed if task.task.key not in stages.similarities]
    if unknown:
        raise UsageError(
            f"{len(unknown)} tasks were not compared with the evaluation set, such as {unknown[0]}",
            f"Run: cuda-agent tasks decontaminate {folder}",
        )
    clean = stages.clean
    if not clean:
        raise UsageError(f"No task of {folder} passed everything", "See the funnel in `cuda-agent tasks stats`")
    chosen = clean if count is None else at_published_shares(clean, count)
    if chosen is None:
        raise UsageError(
            f"{len(clean)} tasks passed everything, too few of some kind for {count} at the published shares",
            "Compose more, or omit --count",
        )
    return Chosen(chosen, stages.measured, stages.similarities, Decontamination.read(folder))


def export(folder: Path, out: Path, chosen: Chosen) -> dict[str, int]:
    """Writes `train.parquet`, `validation.parquet`, `test.parquet` (without empty ones) and `README.md`. Returns the
    number of tasks by split. Raises StoreError."""
    settings = ComposeSettings.find(folder)
    seed = settings.seed if settings is not None else 0
    rows = [_row(task, chosen, seed) for task in chosen.tasks]
    counts = {}
    for split in SPLITS:
        mine = [row for row in rows if row["split"] == split]
        path = out / f"{split}.parquet"
        if not mine:
            path.unlink(missing_ok=True)
            continue
        counts[split] = len(mine)
        write_table(path, mine, tuple(COLUMNS))
    write_durably(out / "README.md", card(chosen, counts))
    return counts


def write_table(path: Path, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """Writes a parquet file with some of the columns; the same rows give the same bytes. Raises StoreError."""
    pyarrow = arrow()
    types = {name: "float64" if COLUMNS[name][0] == "double" else COLUMNS[name][0] for name in columns}
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in types.items()])
    buffer = io.BytesIO()
    table = pyarrow.Table.from_pylist(rows, schema=schema)
    pyarrow.parquet.write_table(table, buffer, compression="zstd", compression_level=19, store_schema=False)
    write_durably(path, buffer.getvalue())


def _row(task: DatasetTask, chosen: Chosen, seed: int) -> dict[str, Any]:
    measurement = chosen.measured.by_key[task.task.key]
    known = {**measurement.model_dump(), **(task.cost.model_dump() if task.cost else {}), "seed": seed}
    known |= {"data_source": task.task.origin, "code": task.task.source, "key": task.task.key, "name": task.task.name}
    known |= {"composer": task.composer, "number": task.number, "stack": chosen.measured.stack_name}
    known |= {"ops": json.dumps(task.ops), "graph_operators": json.dumps(measurement.graph_operators)}
    known["similarity"] = chosen.similarities[task.task.key].similarity
    known["split"] = split_of(measurement.graph_hash or f"none {task.task.key}")
    return {name: known.get(name) for name in COLUMNS}


def card(chosen: Chosen, counts: dict[str, int]) -> str:
    """Returns the dataset card, with the settings that `datasets` needs to load the files."""
    graphs = graphs_of(chosen.measured)
    return filled(
        Path(__file__).parent / "templates" / "card.md.j2",
        counts=counts,
        total=len(chosen.tasks),
        size=_size(len(chosen.tasks)),
        columns=COLUMNS,
        shares=shares(chosen.tasks),
        seeds=len({seed for task in chosen.tasks for seed in task.ops}),
        graphs=len({graphs.get(task.task.key) for task in chosen.tasks}),
        account=chosen.account,
        stack=_stack(chosen.measured.stack),
        stack_hash=chosen.measured.stack_name,
    )


def shares(tasks: Sequence[DatasetTask]) -> tuple[Share, ...]:
    """Returns the shares of the published origins, and then those of others."""
    counts = Counter(task.task.origin for task in tasks)
    published = {f"torch#{kind}" if kind else "transformers#1": share for kind, share in PUBLISHED_SHARES.items()}
    total = max(1, len(tasks))
    return tuple(
        Share(
            origin=origin,
            tasks=counts[origin],
            percent=100 * counts[origin] / total,
            published_percent=published.get(origin, 0.0),
        )
        for origin in [*published, *sorted(set(counts) - set(published))]
    )


def _size(count: int) -> str:
    for limit, name in ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K")):
        if count < limit:
            return name
    return "100K<n<1M"


def _stack(stack: Stack) -> str:
    gpu = f"{stack.gpus[0].name}, driver {stack.driver}" if stack.gpus else stack.cpu
    return f"{gpu}, torch {stack.torch}, Python {stack.python}"
