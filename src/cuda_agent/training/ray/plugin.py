"""What verl imports in each process of the launcher `ray`: the platform and engines of a CPU, and our server."""

from __future__ import annotations

from cuda_agent.training.engine import plugin
from cuda_agent.training.ray import replica  # noqa: F401 - registers itself

plugin.install()
