"""Opens a dialogue by its kind."""

from cuda_agent.agent.dialogues.dialogue import TaskDialogue
from cuda_agent.agent.dialogues.files import FilesDialogue
from cuda_agent.agent.dialogues.short import ShortDialogue
from cuda_agent.agent.dialogues.tools import ToolDialogue
from cuda_agent.agent.policy import Brief
from cuda_agent.core.config import DialogueKind


def task_dialogue(kind: DialogueKind, brief: Brief, examples: int = 1) -> TaskDialogue:
    """Raises NotCovered and TaskError for a task that the kind can't say."""
    if kind == "tools":
        return ToolDialogue(brief)
    return (ShortDialogue if kind == "short" else FilesDialogue)(brief, examples)
