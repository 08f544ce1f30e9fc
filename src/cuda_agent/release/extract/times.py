"""Which submodule a model's time belongs to: pure functions of what hooks and the GPU's record saw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

#: the kernel of `torch.cuda._sleep`, which marks a hook's place among what runs on the GPU.
MARKER = "spin_kernel"


@dataclass(frozen=True)
class Event:
    """A submodule (by number, the model itself is 0) is entered or left. `at_ns` on any one clock."""

    module: int
    entered: bool
    at_ns: int


@dataclass
class Times:
    """ns by submodule: `whole` with its children's, `own` without. `parents`: in whose call it was first entered."""

    whole: dict[int, int] = field(default_factory=dict)
    own: dict[int, int] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)


def attribute(events: Sequence[Event]) -> Times:
    """Time between two events belongs to the innermost submodule that is open. A submodule within itself counts once.
    Raises ValueError where entering and leaving don't pair."""
    times, before = Times(), 0
    stack: list[int] = []
    for event in events:
        if stack:
            passed = event.at_ns - before
            times.own[stack[-1]] = times.own.get(stack[-1], 0) + passed
            for module in set(stack):
                times.whole[module] = times.whole.get(module, 0) + passed
        if event.entered:
            if stack:
                times.parents.setdefault(event.module, stack[-1])
            stack.append(event.module)
            times.whole.setdefault(event.module, 0)
            times.own.setdefault(event.module, 0)
        elif not stack or stack.pop() != event.module:
            raise ValueError("submodules are entered and left crosswise")
        before = event.at_ns
    if stack:
        raise ValueError("a submodule was entered and never left")
    return times


def together(passes: Sequence[Sequence[Event]]) -> list[Event]:
    """One pass that stands for several: each step between two events takes its median. Where the passes differ in what
    they call, the shortest one. Raises ValueError without passes."""
    first = min(passes, key=lambda events: events[-1].at_ns - events[0].at_ns)
    order = [(event.module, event.entered) for event in first]
    alike = [events for events in passes if [(event.module, event.entered) for event in events] == order]
    events, at_ns = [], 0
    for index, (module, entered) in enumerate(order):
        if index:
            steps = [one[index].at_ns - one[index - 1].at_ns for one in alike]
            at_ns += round(middle(steps))
        events.append(Event(module, entered, at_ns))
    return events


def marked_clock(spans: Iterable[tuple[str, int, int]]) -> list[int]:
    """ns in which the GPU was busy before each marker. `spans`: (name, start, end) of all that ran, by their starts;
    markers don't count. What overlaps counts once, where it began."""
    marks: list[int] = []
    total = reached = 0
    for name, start, end in spans:
        if MARKER in name:
            marks.append(total)
        else:
            total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return marks


def middle(values: Sequence[float]) -> float:
    """The median; 0 of nothing."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
