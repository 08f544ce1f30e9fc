from __future__ import annotations

from unit.agent.agent_workspace import calls, run_directory

__all__ = ["calls", "run_directory"]
