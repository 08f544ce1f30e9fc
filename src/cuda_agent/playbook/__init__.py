"""The playbook: optimisation skills that turn a captured graph into kernels. Plain data in, text out; no torch."""

from cuda_agent.playbook.proposal import Proposal, proposals, propose

__all__ = ["Proposal", "proposals", "propose"]
