"""The environment in which a policy plays: real tools in a real workspace, and the judge's verdicts with a memo."""

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
