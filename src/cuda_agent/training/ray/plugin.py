"""The plugin that verl imports in each process of the launcher `ray`: CPU platform, CPU engines, and our server."""

from cuda_agent.training.engine import plugin
from cuda_agent.training.ray import replica  # noqa: F401 - registers itself

plugin.install()
