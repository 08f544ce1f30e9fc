"""Skill (d): algebra on graphs. `rewrite` applies everything; `split_derive` separates what depends on weights
only."""

from cuda_agent.playbook.algebra.derive import split_derive
from cuda_agent.playbook.algebra.driver import RewriteResult, rewrite

__all__ = ["RewriteResult", "rewrite", "split_derive"]
