"""Where a policy plays: real tools in a real workspace, the judge's verdicts, and a memory of them."""

from cuda_agent.training.environment.judges import Judges
from cuda_agent.training.environment.opening import EnvironmentOptions, Opened, open_environment, open_judges
from cuda_agent.training.environment.play import PlayOptions, ToolEnvironment
from cuda_agent.training.environment.rollout import Rollout

__all__ = [
    "EnvironmentOptions",
    "Judges",
    "Opened",
    "PlayOptions",
    "Rollout",
    "ToolEnvironment",
    "open_environment",
    "open_judges",
]  # fmt: skip
