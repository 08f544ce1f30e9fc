"""What a worker does: the module that answers its requests."""

from __future__ import annotations

from typing import NamedTuple


class Role(NamedTuple):
    """`name` is for people. `module` offers `create(context)`, which returns the operations of the worker: a function
    of the request's parameters for each name."""

    name: str
    module: str


REFERENCE = Role("reference", "cuda_agent.workers.inside.reference")
BASELINE = Role("baseline", "cuda_agent.workers.inside.baseline")
CANDIDATE = Role("candidate", "cuda_agent.workers.inside.candidate")
ZYGOTE = Role("zygote", "cuda_agent.workers.inside.zygote")
