"""Chooses the preset's tasks among composed candidates: tasks with several plans, split so that no operator graph is in
both splits."""

import random
from collections.abc import Callable, Sequence

from cuda_agent.agent.trained.offers import Offer, offers
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import CudaAgentError
from cuda_agent.tasks.decontaminate.graphhash import graph_hash
from cuda_agent.tasks.records import DatasetTask
from cuda_agent.training.environment.judges import Judges
from cuda_agent.training.environment.opening import HELD_OUT
from cuda_agent.workspace.skills import skill_notes

#: number of choices of a task at least and at most. All of them are measured.
LEAST_CHOICES, MOST_CHOICES = 4, 20
_MOST_KERNELS = 6


def choose(
    candidates: Sequence[DatasetTask],
    judges: Judges,
    *,
    device: Device,
    train: int,
    held_out: int,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> list[DatasetTask]:
    """Chooses so many tasks of each split, in the candidates' order and one per graph. Half of each split has a matrix
    product or a convolution, where settings matter most. Graphs are captured in the judge's sandbox. Plans are those
    for `device`, which need not exist here."""
    found: dict[str, DatasetTask] = {}
    library: set[str] = set()
    library_kinds = {notes.kernels for notes in skill_notes() if notes.library}
    half = (train + held_out) // 2
    judges.capture(candidate.task for candidate in candidates)
    for candidate in candidates:
        if len(found) >= train + held_out:
            break
        try:
            graph = judges.graph(candidate.task)
            plans = offers(graph, device, Precision.TF32, candidate.task.key)
        except CudaAgentError as error:
            progress(f"{candidate.task.name}: {error.cause}")
            continue
        hashed = graph_hash(graph)
        if hashed in found or not _matters(plans):
            continue
        calls_library = any(step.kind in library_kinds for plan in plans for step in plan.steps)
        if len(library) >= half if calls_library else len(found) - len(library) >= train + held_out - half:
            continue
        found[hashed] = candidate
        library |= {hashed} if calls_library else set()
        progress(f"{len(found)}: {', '.join(candidate.ops)}: {choices(plans)} choices")
    held: set[str] = set()
    for group, count in ((library, held_out // 2), (set(found) - library, held_out - held_out // 2)):
        held |= set(random.Random(seed).sample(sorted(group), min(count, len(group))))
    splits = {hashed: HELD_OUT if hashed in held else "train" for hashed in found}
    return [
        candidate.model_copy(update={"task": candidate.task.model_copy(update={"split": splits[hashed]})})
        for hashed, candidate in found.items()
    ]


def choices(plans: Sequence[Offer]) -> int:
    """Returns the number of candidates of these plans and settings."""
    return sum(len(list(plan.settings())) for plan in plans)


def _matters(plans: Sequence[Offer]) -> bool:
    small = all(len(plan.steps) <= _MOST_KERNELS for plan in plans)
    return small and len(plans) > 1 and LEAST_CHOICES <= choices(plans) <= MOST_CHOICES
