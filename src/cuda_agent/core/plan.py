"""A playbook's plan as data. Its policy reports it with a turn, and the report explains it to learners."""

from __future__ import annotations

from cuda_agent.core.record import Record


class PlannedKernel(Record):
    """One launch, and the skill that wrote it."""

    name: str
    skill: str


class AppliedRule(Record):
    """One application of an algebra rule, at a node of the graph."""

    rule: str
    node: str


class KernelPlan(Record):
    """The kernels in their order, after these rewrites of the graph. With `channels_last`, convolutions read and write
    their channels innermost."""

    kernels: tuple[PlannedKernel, ...]
    rewrites: tuple[AppliedRule, ...] = ()
    channels_last: bool = False

    @property
    def summary(self) -> str:
        """The kernels in order and the rewrites, in one line."""
        text = " -> ".join(kernel.name for kernel in self.kernels)
        rewrites = "; ".join(f"{one.rule}: {one.node}" for one in self.rewrites)
        return f"{text} ({rewrites})" if rewrites else text
