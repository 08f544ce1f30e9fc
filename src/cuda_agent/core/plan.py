"""A playbook's plan as data. Its policy reports it with a turn, and the report explains it to learners."""

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
        text = " -> ".join(_shortened([kernel.name for kernel in self.kernels]))
        rewrites = "; ".join(_shortened([f"{one.rule}: {one.node}" for one in self.rewrites]))
        return f"{text} ({rewrites})" if rewrites else text


def _shortened(names: list[str], most: int = 24) -> list[str]:
    """Replaces the middle of a long list by the number of names in it."""
    left = len(names) - most
    return [*names[: most - 4], f"… {left} more …", *names[-4:]] if left > 0 else names
