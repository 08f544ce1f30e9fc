"""Finds policies by their names."""

from pathlib import Path

from cuda_agent.agent.policies.attempts import AttemptsPolicy
from cuda_agent.agent.policies.checkpoint import CheckpointPolicy
from cuda_agent.agent.policies.files import FilesPolicy
from cuda_agent.agent.policies.llm import LanguageModelPolicy
from cuda_agent.agent.policies.playbook import PlaybookPolicy
from cuda_agent.agent.policy import Brief, Policy, PolicyMaker
from cuda_agent.agent.trained.checkpoint import check_checkpoint
from cuda_agent.core.errors import UsageError

POLICIES = ("playbook", "llm")
#: prefix of the policy that submits existing kernels from a folder.
FILES = "files:"


def policy_name(policy: str | PolicyMaker) -> str:
    """Returns the name for records. For a trained checkpoint and for `files:` it contains the folder's path. Raises
    UsageError for an unknown name, before a judge is opened."""
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
    """Returns the policy of that name, or what the given function makes. Raises UsageError for an unknown name."""
    if not isinstance(policy, str):
        return policy(brief)
    name = policy_name(policy)
    if name == "llm":
        has_tools = brief.llm is None or brief.llm.dialogue == "tools"
        return LanguageModelPolicy(brief) if has_tools else AttemptsPolicy(brief)
    if name.startswith(FILES):
        return FilesPolicy(brief, Path(name.removeprefix(FILES)))
    if name not in POLICIES:
        return CheckpointPolicy(brief, Path(name))
    return PlaybookPolicy(brief)
