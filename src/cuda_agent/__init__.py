"""CUDA Agent: turns a slow PyTorch module into a verified, faster CUDA extension.

The commands' Python API: `cuda_agent.optimize(task, …) -> Trajectory` and
`cuda_agent.judge.evaluate(task, candidate, …) -> Evaluation`. Importing this does no work.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuda_agent.agent.optimize import optimize as optimize
    from cuda_agent.agent.optimize import resume as resume
    from cuda_agent.agent.taskfile import load_task as load_task

__all__ = ["__version__", "load_task", "optimize", "resume"]

_WHERE = {
    "optimize": "cuda_agent.agent.optimize",
    "resume": "cuda_agent.agent.optimize",
    "load_task": "cuda_agent.agent.taskfile",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("cuda-agent")
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'cuda_agent' has no attribute {name!r}")
