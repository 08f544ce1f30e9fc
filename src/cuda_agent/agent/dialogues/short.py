"""The short dialogue: an answer is one fenced block, the kernel of the single-file form."""

import re
from pathlib import Path
from typing import Any

from cuda_agent.agent.dialogues.fenced import FencedDialogue
from cuda_agent.agent.policy import Brief
from cuda_agent.playbook.single_file import SingleFile

_BLOCK = re.compile(r"```[\w+]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


class ShortDialogue(FencedDialogue):
    """The last block counts. Binding and `model_new.py` are made."""

    template = "short.md.j2"
    nothing = "There is no fenced block, so nothing was built."
    again = "Answer with the whole kernel in one fenced block."

    def __init__(self, brief: Brief, examples: int = 1) -> None:
        """Raises NotCovered and TaskError where the task has no single-file form."""
        super().__init__(brief, examples)
        self._form = SingleFile.of(self._graph, brief.device)

    def facts(self) -> dict[str, Any]:
        return {
            "tensors": [argument.description for argument in self._form.arguments],
            "declaration": self._form.declaration,
        }

    def candidate(self, text: str) -> dict[str, str]:
        blocks = _BLOCK.findall(text)
        return self._form.candidate(blocks[-1], self._graph) if blocks else {}

    def as_written(self, reason: str) -> str:
        """Returns the message with line numbers of the model's own text."""
        above = self._form.opening.count("\n")
        place = re.compile(rf"(?:\S*/)?{re.escape(Path(self._form.path).name)}(?:\((\d+)\)|:(\d+))")

        def line(found: re.Match[str]) -> str:
            return f"line {max(1, int(found[1] or found[2]) - above)}"

        return place.sub(line, reason)  # foreign text: the compiler's
