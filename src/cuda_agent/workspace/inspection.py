"""Writes an inspection as text, for the command in a workspace and for the agent's tool."""

from __future__ import annotations

from pathlib import Path

from cuda_agent.core.assets import filled
from cuda_agent.core.inspection import InspectReport


def say_inspection(report: InspectReport) -> str:
    """Returns lines: the limit, then the kernels by their time, then the compiled functions."""
    return filled(Path(__file__).parent / "texts" / "inspection.txt.j2", report=report).removesuffix("\n")
