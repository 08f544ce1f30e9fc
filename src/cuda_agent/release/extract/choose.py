"""Chooses the submodules that become tasks: the largest that can, never one inside another, and equal ones together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from cuda_agent.release.extract.survey import DEPENDS, Part


@dataclass
class PartGroup:
    """Submodules, by their numbers, that may be one task. `reason` says why they aren't."""

    kind: str
    members: list[int]
    us: float
    reason: str = ""


@dataclass
class TaskChoice:
    """Groups by their time, the longest first. `outside_us` is spent in submodules that only call others."""

    units: list[PartGroup] = field(default_factory=list)
    left_out: list[PartGroup] = field(default_factory=list)
    outside_us: float = 0.0


def choose(parts: Sequence[Part], most_operators: int) -> TaskChoice:
    """Searches from the model downwards. A submodule whose call can be written as text, of at most `most_operators`
    operators, is a unit. The children of any other are searched; one without children is left out."""
    choice = TaskChoice(outside_us=parts[0].own_us)
    units: dict[str, PartGroup] = {}
    left: dict[str, PartGroup] = {}
    pending = list(parts[0].children)
    while pending:
        index = pending.pop(0)
        part = parts[index]
        reason = part.reason
        if not reason and part.operators == 0:
            reason = "it runs no operator"
        if not reason and part.operators > most_operators:
            reason = f"{part.operators} operators, more than --operators {most_operators}"
        if not reason:
            _join(units, part.alike, part, index, part.us, "")
        else:
            # What is inside a part whose shapes depend on the data has such shapes as well.
            inside = [] if reason == DEPENDS else part.children
            pending += inside
            _join(left, f"{part.kind}: {reason}", part, index, part.own_us if inside else part.us, reason)
    for group in units.values():
        layouts = Counter(parts[index].inputs for index in group.members)
        # The first member is one of the most common layout, which becomes that of the task.
        group.members.sort(key=lambda index: (-layouts[parts[index].inputs], index))
    choice.units = sorted(units.values(), key=lambda group: -group.us)
    choice.left_out = sorted(left.values(), key=lambda group: -group.us)
    return choice


def _join(groups: dict[str, PartGroup], key: str, part: Part, index: int, us: float, reason: str) -> None:
    group = groups.setdefault(key, PartGroup(part.kind, [], 0.0, reason))
    group.members.append(index)
    group.us += us
