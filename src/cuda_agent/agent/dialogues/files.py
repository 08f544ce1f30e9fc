"""The dialogue of all files: an answer has each file of the workspace's form in a fenced block of its own."""

import re

from cuda_agent.agent.dialogues.fenced import FencedDialogue
from cuda_agent.workspace.layout import is_writable

#: the line above a block, what stands beside its opening fence, its text.
_BLOCK = re.compile(r"(?:^([^\n`][^\n]*)\n\s*)?^```([^\n]*)\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)
_PATH = re.compile(r"(?:kernels/[\w./-]+\.\w+|model_new\.py)")


class FilesDialogue(FencedDialogue):
    """A block's path stands beside its fence, in the line above or in its first line."""

    template = "files.md.j2"
    nothing = "There is no fenced block with the path of a file, so nothing was built."
    again = "Answer with all files, each in its fenced block with its path."

    def candidate(self, text: str) -> dict[str, str]:
        files = {}
        for above, beside, content in _BLOCK.findall(text):
            places = (beside, above, content.partition("\n")[0])
            path = next((found[0] for place in places if (found := _PATH.search(place))), "")
            if path and is_writable(path):
                files[path] = content
        return files
