"""The policies by their names."""

from __future__ import annotations

from pathlib import Path

from cuda_agent.agent.policies.checkpoint import CheckpointPolicy
from cuda_agent.agent.policies.files import FilesPolicy
from cuda_agent.agent.policies.llm import LanguageModelPolicy
from cuda_agent.agent.policies.playbook import PlaybookPolicy
from cuda_agent.agent.policy import Brief, Policy, PolicyMaker
from cuda_agent.agent.trained.checkpoint import check_checkpoint
from cuda_agent.core.errors import UsageError

POLICIES = ("playbook", "llm")
#: begins the name of the policy that takes others' kernels from a folder.
FILES = "files:"


def policy_name(policy: str | PolicyMaker) -> str:
    """The name that records hold: that of a trained checkpoint is its folder's path, and `files:` has its folder's.
    Raises UsageError for the name of no policy: at once, before a judge is opened."""
    if not isinstance(policy, str):
        return str(getattr(policy, "name", None) or getattr(policy, "__name__", "custom"))
    if policy in POLICIES:
        return policy
    if policy.startswith(FILES):
        folder = Path(policy.removeprefix(FILES))
        if policy == FILES or not folder.is_dir():
            raise UsageError(f"{folder} is no folder of kernels", "Give files:DIR, with a folder for each task in DIR")
        return f"{FILES}{folder.resolve()}"
    if Path(policy).is_dir():
        check_checkpoint(Path(policy))
        return str(Path(policy).resolve())
    known = f"Choose one of: {', '.join(POLICIES)}, files:DIR; or give the folder of a trained checkpoint"
    raise UsageError(f"No policy {policy!r}", known)


def make_policy(policy: str | PolicyMaker, brief: Brief) -> Policy:
    """The policy of that name, or what the given function makes. Raises UsageError when there is none of that name."""
    if not isinstance(policy, str):
        return policy(brief)
    name = policy_name(policy)
    if name == "llm":
        return LanguageModelPolicy(brief)
    if name.startswith(FILES):
        return FilesPolicy(brief, Path(name.removeprefix(FILES)))
    if name not in POLICIES:
        return CheckpointPolicy(brief, Path(name))
    return PlaybookPolicy(brief)
