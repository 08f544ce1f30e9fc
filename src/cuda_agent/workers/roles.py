"""What a worker does: the module that answers its requests."""

from __future__ import annotations

from typing import NamedTuple

from cuda_agent.core.assets import program


class Role(NamedTuple):
    """`name` is for people. `module` offers `create(context)`, which returns the operations of the worker: a function
    of the request's parameters for each name. A role that `compiles` begins with torch's compiler imported."""

    name: str
    module: str
    compiles: bool = False


REFERENCE = Role("reference", "cuda_agent.workers.inside.reference")
BASELINE = Role("baseline", "cuda_agent.workers.inside.baseline")
CANDIDATE = Role("candidate", "cuda_agent.workers.inside.candidate")


def worker_command(module: str, descriptor: int) -> list[str]:
    """Returns the command of a worker in a process of its own."""
    return program("cuda_agent.workers.inside.main", module, str(descriptor))
