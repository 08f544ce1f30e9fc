"""Evaluation tasks in the form for comparisons, and fingerprint files, which have no source text."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, PlainSerializer

from cuda_agent.core.enums import Device, SandboxLevel
from cuda_agent.core.errors import StoreError, TaskError, UsageError
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.lines import read_headed, write_lines
from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.records import Task
from cuda_agent.tasks.captured import NotCaptured, capture_graph, task_workers
from cuda_agent.tasks.decontaminate import graphhash
from cuda_agent.tasks.decontaminate import shingles as measure
from cuda_agent.tasks.decontaminate.reading import TaskSource, read_hub, read_sources
from cuda_agent.tasks.decontaminate.shingles import Bag, Shingles, shingles
from cuda_agent.workers.process import Worker

#: The shingles of a file without a statement.
_EMPTY = 2
#: The number of captured graphs between reports of progress.
_STEP = 25
Say = Callable[[str], None]
#: Returns source digest -> graph hash, for the sources that have a graph.
Capture = Callable[[Sequence[TaskSource], Say], Mapping[str, str]]
#: Shingles with their counts, as sorted pairs in JSON.
_Pairs = Annotated[
    Bag,
    BeforeValidator(lambda pairs: Counter(dict(pairs))),
    PlainSerializer(lambda bag: sorted(bag.items()), when_used="json"),
]


@dataclass(frozen=True)
class EvaluationTask:
    """An evaluation task. `graph` is None where `forward` couldn't be captured."""

    name: str
    shingles: Shingles
    graph: str | None


class FingerprintHead(StoredRecord):
    """The first line of a fingerprint file. `count` is the number of further lines, so that a truncated file is
    noticed."""

    kind: Literal["fingerprints"] = "fingerprints"
    count: int
    shingles_version: int = measure.VERSION
    graph_version: int = graphhash.VERSION


class Fingerprint(Record):
    """One evaluation task: the `id` of its source, and its shingles with their counts."""

    id: str
    computation: _Pairs
    syntax: _Pairs
    graph: str | None


def source_id(text: str) -> str:
    """Returns an id of a source that doesn't reveal it."""
    return digest_text("evaluation task", text)[:16]


def load_references(given: Sequence[str], capture: Capture | None, say: Say) -> list[EvaluationTask]:
    """Returns all evaluation tasks.

    `given` has paths, and names of datasets on Hugging Face. Without `capture`, only fingerprint files have graph
    hashes. Raises UsageError where nothing is given or a place has no task, StoreError where it can't be read.
    """
    references: list[EvaluationTask] = []
    if not given:
        raise UsageError("No evaluation set is given", "Add --against PATH (a folder, a file, …)")
    for text in given:
        path = Path(text)
        sealed = path.is_file() and is_fingerprints(path)
        found = read_fingerprints(path) if sealed else _prepared(_sources(text), capture, say)
        say(f"{text}: {len(found)} evaluation tasks, {sum(r.graph is not None for r in found)} of them with a graph")
        references += found
    return references


def _sources(given: str) -> list[TaskSource]:
    """Returns the tasks at a path, or of the dataset on Hugging Face whose name it is."""
    is_name = not Path(given).exists() and given.count("/") == 1 and not given.startswith((".", "/", "~"))
    return read_hub(given) if is_name else read_sources(Path(given))


def _prepared(sources: Sequence[TaskSource], capture: Capture | None, say: Say) -> list[EvaluationTask]:
    bags = []
    for source in sources:
        try:
            bags.append(shingles(source.text, source.name))
        except TaskError as error:
            raise StoreError(error.cause, "Correct it or remove it: a source that isn't compared would pass") from None
        if bags[-1].syntax.total() <= _EMPTY:
            raise StoreError(f"{source.name} is empty", "Remove it: a source that isn't compared would pass")
    graphs = capture(sources, say) if capture is not None else {}
    return [
        EvaluationTask(source.name, bag, graphs.get(source_id(source.text)))
        for source, bag in zip(sources, bags, strict=True)
    ]


def capturing(device: Device, level: SandboxLevel, memory_mib: int) -> Capture:
    """Returns a function that captures graphs on `device`, each task in its own process with at most `memory_mib`."""

    def capture(sources: Sequence[TaskSource], say: Say) -> Mapping[str, str]:
        graphs: dict[str, str] = {}
        with task_workers(device, level, memory_mib) as start:
            for number, source in enumerate(sources, 1):
                try:
                    graphs[source_id(source.text)] = _captured(start, source, device, memory_mib)
                except NotCaptured as failed:
                    say(f"{source.name} has no graph: {' '.join(str(failed).split())[:300]}")
                if number % _STEP == 0 or number == len(sources):
                    say(f"{number} of {len(sources)} graphs of evaluation tasks")
        return graphs

    return capture


def _captured(start: Callable[[], Worker], source: TaskSource, device: Device, memory_mib: int) -> str:
    task = Task(name=Path(source.name).stem, source=source.text)
    try:
        return graphhash.graph_hash(capture_graph(start, task, device, memory_mib))
    except (KeyError, RecursionError) as error:
        raise NotCaptured(f"its graph has no hash: {error}") from None


def is_fingerprints(path: Path) -> bool:
    """Returns whether a file's first line is that of a fingerprint file."""
    try:
        with open(path, "rb") as stream:
            first = json.loads(stream.readline(4096))
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and first.get("kind") == "fingerprints"


def write_fingerprints(path: Path, given: str, capture: Capture | None, say: Say) -> list[Fingerprint]:
    """Writes fingerprints of the evaluation set `given`, without its source text. Raises UsageError, StoreError."""
    sources = _sources(given)
    lines = {}
    for source, reference in zip(sources, _prepared(sources, capture, say), strict=True):
        key, bags = source_id(source.text), reference.shingles
        lines[key] = Fingerprint(id=key, computation=bags.computation, syntax=bags.syntax, graph=reference.graph)
    records = [lines[key] for key in sorted(lines)]
    head = FingerprintHead(count=len(records))
    write_lines(path, (head, *records))
    return records


def read_fingerprints(path: Path) -> list[EvaluationTask]:
    """Reads a fingerprint file. Raises StoreError where the file is truncated, empty, or of another version."""
    head, records = read_headed(path, FingerprintHead, Fingerprint)
    if head is None:
        raise StoreError(f"{path} has no fingerprints", "Make it again")
    versions = (head.shingles_version, head.graph_version)
    if versions != (measure.VERSION, graphhash.VERSION):
        raise StoreError(f"{path} has fingerprints of version {versions}", "Make it again with this cuda-agent")
    if len(records) != head.count or not records:
        raise StoreError(f"{path} has {len(records)} fingerprints instead of {head.count}", "Make it again")
    return [
        EvaluationTask(f"{path.stem} {record.id}", Shingles(record.computation, record.syntax), record.graph)
        for record in records
    ]
