"""Chooses the tasks of the dataset from those that passed: the first ones of each kind, at the published shares."""

from collections.abc import Mapping, Sequence

from cuda_agent.tasks.compose.schedule import PUBLISHED_SHARES
from cuda_agent.tasks.records import DatasetTask

#: The points by which a kind's share may differ from the published one, so that a rare kind doesn't cost thousands of
#: candidates.
SLACK_POINTS = 0.7


def kind_of(task: DatasetTask) -> int:
    """Returns the number of torch operators, or 0 for a transformers module, as in the shares."""
    library, _, count = task.task.origin.partition("#")
    return 0 if library == "transformers" else int(count or 0)


def choose(passed: Sequence[DatasetTask], wanted: int) -> list[DatasetTask] | None:
    """Returns `wanted` tasks in their order, or None where a kind has too few."""
    by_kind: dict[int, list[DatasetTask]] = {kind: [] for kind in PUBLISHED_SHARES}
    for task in passed:
        by_kind.setdefault(kind_of(task), []).append(task)
    counts = _counts({kind: len(by_kind[kind]) for kind in PUBLISHED_SHARES}, wanted)
    if counts is None:
        return None
    keys = {task.task.key for kind, count in counts.items() for task in by_kind[kind][:count]}
    return [task for task in passed if task.task.key in keys]


def _counts(there: Mapping[int, int], wanted: int) -> dict[int, int] | None:
    """Returns the number of each kind, as near to the shares as the tasks allow; other kinds replace missing ones."""
    shares = PUBLISHED_SHARES
    counts = {kind: min(there[kind], int(wanted * share / 100)) for kind, share in shares.items()}
    most = {kind: min(there[kind], int(wanted * (share + SLACK_POINTS) / 100) + 1) for kind, share in shares.items()}
    while sum(counts.values()) < wanted:
        able = [kind for kind in shares if counts[kind] < most[kind]]
        if not able:
            return None
        # The kind that is furthest below its share gets the next task.
        behind = min(able, key=lambda kind: (counts[kind] - wanted * shares[kind] / 100, kind))
        counts[behind] += 1
    least = {kind: int(wanted * max(0.0, share - SLACK_POINTS) / 100) for kind, share in shares.items()}
    return counts if all(counts[kind] >= least[kind] for kind in shares) else None
