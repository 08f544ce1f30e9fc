"""A playbook's plan as data. Its policy reports it with a turn, and the report explains it to learners."""

from __future__ import annotations

import itertools

from cuda_agent.core.record import Record


class PlannedKernel(Record):
    """One launch of a plan."""

    name: str
    """The kernel's name."""
    skill: str
    """The skill that wrote it."""


class AppliedRule(Record):
    """One application of an algebra rule, at a node of the graph."""

    rule: str
    """The rule's name."""
    node: str
    """The node of the graph."""


class KernelPlan(Record):
    """The kernels of a playbook's plan."""

    kernels: tuple[PlannedKernel, ...]
    """Launches in order."""
    rewrites: tuple[AppliedRule, ...] = ()
    """Rewrites of the graph before them."""
    channels_last: bool = False
    """Whether convolutions keep their channels innermost."""

    @property
    def summary(self) -> str:
        """The kernels in order and the rewrites, in one line."""
        runs = [(name, len(list(run))) for name, run in itertools.groupby(kernel.name for kernel in self.kernels)]
        text = " -> ".join(name if count == 1 else f"{name} (×{count})" for name, count in runs)
        rewrites = "; ".join(f"{one.rule}: {one.node}" for one in self.rewrites)
        return f"{text} ({rewrites})" if rewrites else text
