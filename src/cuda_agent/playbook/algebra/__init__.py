"""Algebraic rewrites of graphs. `rewrite` applies all of them and `split_derive` separates the values that depend on
weights only."""

from cuda_agent.playbook.algebra.derive import split_derive
from cuda_agent.playbook.algebra.driver import RewriteResult, rewrite

__all__ = ["RewriteResult", "rewrite", "split_derive"]
