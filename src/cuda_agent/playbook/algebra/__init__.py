"""Algebraic rewrites of graphs. `rewrite` applies all of them and separates the values that depend on weights only."""

from cuda_agent.playbook.algebra.driver import rewrite

__all__ = ["rewrite"]
