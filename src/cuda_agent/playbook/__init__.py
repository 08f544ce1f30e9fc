"""The playbook: optimisation skills that turn a captured graph into the text of kernels, without torch."""

from cuda_agent.playbook.proposal import Proposal, proposals, propose

__all__ = ["Proposal", "proposals", "propose"]
