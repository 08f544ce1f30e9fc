"""The stage compares every task with every evaluation task, and with the earlier tasks of its own dataset."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field

from cuda_agent.core.errors import UsageError
from cuda_agent.core.lines import write_lines
from cuda_agent.core.record import StoredRecord
from cuda_agent.tasks.decontaminate import graphhash
from cuda_agent.tasks.decontaminate import shingles as measure
from cuda_agent.tasks.decontaminate.index import Index
from cuda_agent.tasks.decontaminate.references import EvaluationTask
from cuda_agent.tasks.decontaminate.shingles import shingles
from cuda_agent.tasks.records import DatasetTask, Rule, Similarity, TaskFinding

SIMILARITY_FILE = "similarity.jsonl"
#: The published bound on the similarity to an evaluation task.
THRESHOLD = 0.9
#: The number of bins of the saved histogram; the last bin includes 1.
BINS = 50
_STEP = 500


class SealedComparison(StoredRecord):
    """A comparison with sealed evaluation tasks, so that a build needs no fingerprints. `left_out` has the keys of the
    tasks that have the operator graph of one (`same_graph` of `tasks`) or are too similar (`similar_syntax`)."""

    tasks: int
    references: int
    references_with_graph: int
    same_graph: int
    similar_syntax: int
    left_out: tuple[str, ...]


class Decontamination(StoredRecord):
    """The summary of the comparisons. `histogram` counts tasks by the similarity to their nearest evaluation task, in
    bins of equal width from 0 to 1; `twins` does the same for the nearest earlier task of the dataset."""

    file_name = "decontamination.json"
    references: int
    references_with_graph: int
    against: tuple[str, ...]
    threshold: float
    copies: int
    shingles_version: int = measure.VERSION
    graph_version: int = graphhash.VERSION
    tasks: int
    tasks_with_graph: int
    kept: int
    similar_syntax: int
    same_graph: int
    duplicates: int
    #: The comparison with a sealed evaluation set that was recorded before.
    sealed: SealedComparison | None = None
    histogram: tuple[int, ...] = Field(min_length=BINS, max_length=BINS)
    twins: tuple[int, ...] = Field(min_length=BINS, max_length=BINS)


@dataclass(frozen=True)
class Compared:
    """The result of each task in order, and the summary."""

    lines: tuple[Similarity, ...]
    account: Decontamination

    def write(self, folder: Path) -> None:
        """Writes `similarity.jsonl` and `decontamination.json`. Raises StoreError."""
        write_lines(folder / SIMILARITY_FILE, self.lines)
        self.account.write(folder)

    def sealed(self) -> SealedComparison:
        """Returns this comparison without anything of the evaluation tasks."""
        similar = [line for line in self.lines if line.finding is not None and line.finding.rule is Rule.SIMILAR]
        fields = self.account.model_dump(include=set(SealedComparison.model_fields) - {"schema_version"})
        return SealedComparison(**fields, left_out=tuple(sorted(line.task_key for line in similar)))


def compare(
    tasks: Sequence[DatasetTask],
    graphs: Mapping[str, str],
    references: Sequence[EvaluationTask],
    *,
    against: Sequence[str],
    threshold: float = THRESHOLD,
    copies: int = 1,
    sealed: SealedComparison | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Compared:
    """Finds tasks that are too similar to an evaluation task, or duplicates of an earlier task that is kept.

    `graphs` maps a task key to the hash of its operator graph. `copies` is how many similar tasks the dataset may have.
    `sealed` is an earlier comparison with an evaluation set that isn't among the references.
    Raises UsageError without evaluation tasks, TaskError where a task isn't Python.
    """
    if not references:
        raise UsageError("There is no evaluation task to compare with", "Give --against")
    outside, inside = Index(reference.shingles for reference in references), Index()
    owners = {reference.graph: reference.name for reference in reversed(references) if reference.graph is not None}
    hashes = np.array([graphs.get(task.task.key, f"none {place}") for place, task in enumerate(tasks)])
    left_out = frozenset(sealed.left_out if sealed is not None else ())
    kept: list[int] = []
    lines = []
    for place, task in enumerate(tasks):
        bag = shingles(task.task.source, task.task.name)
        scores, twins = outside.similarities(bag), inside.similarities(bag)
        nearest, twin_similarity = int(scores.argmax()), float(twins.max(initial=0.0))
        line = Similarity(
            task_key=task.task.key,
            finding=None,
            nearest=references[nearest].name if scores[nearest] > 0 else None,
            similarity=round(float(scores[nearest]), 4),
            same_graph=owners.get(str(hashes[place])),
            twin=tasks[kept[int(twins.argmax())]].task.key if twin_similarity > 0 else None,
            twin_similarity=round(twin_similarity, 4),
        )
        alike = int(((twins >= threshold) | (hashes[kept] == hashes[place])).sum())
        finding = _finding(line, float(scores[nearest]), alike, threshold, copies)
        if task.task.key in left_out:
            finding = TaskFinding(rule=Rule.SIMILAR, detail="equals a task of a sealed evaluation set")
        line = line.model_copy(update={"finding": finding})
        lines.append(line)
        if line.finding is None:
            kept.append(place)
            inside.add(bag)
        if (place + 1) % _STEP == 0 or place + 1 == len(tasks):
            say(f"{place + 1} of {len(tasks)} compared, {len(kept)} kept")
    account = _account(lines, references, graphs, against, threshold, copies)
    return Compared(tuple(lines), account.model_copy(update={"sealed": sealed}))


def _finding(line: Similarity, similarity: float, alike: int, threshold: float, copies: int) -> TaskFinding | None:
    if line.same_graph is not None:
        return TaskFinding(rule=Rule.SIMILAR, detail=f"has the operator graph of {line.same_graph}")
    if similarity >= threshold:
        return TaskFinding(rule=Rule.SIMILAR, detail=f"similarity {line.similarity} to {line.nearest}")
    if alike >= copies:
        return TaskFinding(rule=Rule.DUPLICATE, detail=f"like {alike} tasks, most {(line.twin or 'none')[:12]}")
    return None


def _account(
    lines: Sequence[Similarity],
    references: Sequence[EvaluationTask],
    graphs: Mapping[str, str],
    against: Sequence[str],
    threshold: float,
    copies: int,
) -> Decontamination:
    rules = [line.finding.rule if line.finding else None for line in lines]
    return Decontamination(
        references=len(references),
        references_with_graph=sum(reference.graph is not None for reference in references),
        against=tuple(against),
        threshold=threshold,
        copies=copies,
        tasks=len(lines),
        tasks_with_graph=sum(line.task_key in graphs for line in lines),
        kept=rules.count(None),
        similar_syntax=sum(line.similarity >= threshold for line in lines),
        same_graph=sum(line.same_graph is not None for line in lines),
        duplicates=rules.count(Rule.DUPLICATE),
        histogram=_histogram([line.similarity for line in lines]),
        twins=_histogram([line.twin_similarity for line in lines]),
    )


def _histogram(values: Sequence[float]) -> tuple[int, ...]:
    counts, _ = np.histogram(values, bins=BINS, range=(0.0, 1.0))
    return tuple(int(count) for count in counts)
