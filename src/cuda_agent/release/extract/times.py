"""Attributes a model's time to its submodules. The functions are pure: they read the events of hooks and of the GPU."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

#: the kernel of `torch.cuda._sleep`, which marks the time of a hook on the GPU.
MARKER = "spin_kernel"


@dataclass(frozen=True)
class Event:
    """A submodule (by number, the model is 0) is entered or left. All events have the time `at_ns` of the same
    clock."""

    module: int
    entered: bool
    at_ns: int


@dataclass
class ModuleTimes:
    """Nanoseconds by submodule: `total` with its children, `own` without them. `parents` names the submodule whose call
    entered it first."""

    total: dict[int, int] = field(default_factory=dict)
    own: dict[int, int] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)


def attribute(events: Sequence[Event]) -> ModuleTimes:
    """Attributes the time between two events to the innermost submodule that is open. A submodule inside itself counts
    once. Raises ValueError where the events don't pair."""
    times, before = ModuleTimes(), 0
    stack: list[int] = []
    for event in events:
        if stack:
            passed = event.at_ns - before
            times.own[stack[-1]] = times.own.get(stack[-1], 0) + passed
            for module in set(stack):
                times.total[module] = times.total.get(module, 0) + passed
        if event.entered:
            if stack:
                times.parents.setdefault(event.module, stack[-1])
            stack.append(event.module)
            times.total.setdefault(event.module, 0)
            times.own.setdefault(event.module, 0)
        elif not stack or stack.pop() != event.module:
            raise ValueError("a submodule is left before one that was entered later")
        before = event.at_ns
    if stack:
        raise ValueError("a submodule was entered and never left")
    return times


def median_pass(passes: Sequence[Sequence[Event]]) -> list[Event]:
    """Returns one pass whose steps between two events have the median time of several passes. Passes that call other
    submodules than the shortest one are ignored. Raises ValueError without passes."""
    first = min(passes, key=lambda events: events[-1].at_ns - events[0].at_ns)
    order = [(event.module, event.entered) for event in first]
    alike = [events for events in passes if [(event.module, event.entered) for event in events] == order]
    events, at_ns = [], 0
    for index, (module, entered) in enumerate(order):
        if index:
            steps = [one[index].at_ns - one[index - 1].at_ns for one in alike]
            at_ns += round(statistics.median(steps))
        events.append(Event(module, entered, at_ns))
    return events


def marked_clock(spans: Iterable[tuple[str, int, int]]) -> list[int]:
    """Returns the nanoseconds in which the GPU was busy before each marker. `spans` are (name, start, end) of
    everything that ran, by their starts. Markers don't count; overlapping spans count once, where the first began."""
    marks: list[int] = []
    total = reached = 0
    for name, start, end in spans:
        if MARKER in name:
            marks.append(total)
        else:
            total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return marks
