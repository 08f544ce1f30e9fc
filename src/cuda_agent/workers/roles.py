"""What a worker does: the module that answers its requests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

#: a worker's program. Its main turns the garbage collector on when torch is imported; see `inside.imports`.
_PACKAGES = str(Path(__file__).resolve().parents[2])
_PROGRAM = (
    "import gc, sys; gc.disable(); own = sys.argv.pop(); own in sys.path or sys.path.insert(0, own); "
    "from cuda_agent.workers.inside.main import main; main()"
)


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
    """Returns the command of a worker in a process of its own. -P: nothing is imported from the working directory."""
    return [sys.executable, "-P", "-c", _PROGRAM, module, str(descriptor), _PACKAGES]
