"""The notes of the playbook's skills: what a reader of skills needs, without their code.

A skill is a folder with a file `notes.md`: front matter as in Agent Skills, and a page. Its `metadata` holds what
`SkillNotes` describes.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import yaml

from cuda_agent.core.config import Configuration
from cuda_agent.core.errors import UsageError

#: folders of skills; `playbook.skills` imports their code from the same ones.
FOLDERS = [str(Path(__file__).parents[1] / "playbook" / "skills")]


class SkillNotes(Configuration):
    """The front matter and the page of one skill."""

    #: the folder's name, which is also its name in records
    name: str
    #: what it does, and when to use it
    description: str
    #: a few words for the table of skills in a workspace's SKILL.md
    purpose: str
    #: skills are asked, listed and tuned in ascending order, those of one order by name
    order: int
    #: the first word of its kernels' names; empty for a skill that only rewrites the graph
    kernels: str = ""
    #: whether its kernels call the vendor's library, where settings matter most
    library: bool = False
    #: the file's text
    page: str

    @property
    def title(self) -> str:
        """The page's heading."""
        found = re.search(r"^# (.+)$", self.page, re.MULTILINE)
        return found[1] if found else self.name

    @property
    def why(self) -> str:
        """The page's paragraph on why the skill is fast; the description if it has none."""
        found = re.search(r"^\*\*Why it is fast\.\*\*(.+?)(?:\n\n|\Z)", self.page, re.MULTILINE | re.DOTALL)
        return found[1] if found else self.description


@cache
def skill_notes() -> tuple[SkillNotes, ...]:
    """The notes of all skills in their order. Raises UsageError that names a bad front matter."""
    found = [_read(path) for folder in FOLDERS for path in Path(folder).glob("*/notes.md")]
    return tuple(sorted(found, key=lambda notes: (notes.order, notes.name)))


def _read(path: Path) -> SkillNotes:
    page = path.read_text()
    try:
        front = yaml.safe_load(page.split("---\n", 2)[1])
        values = {"page": page, **front.pop("metadata"), **front, "name": path.parent.name}
    except (AttributeError, IndexError, KeyError, TypeError, yaml.YAMLError):
        raise UsageError(f"{path} has no front matter with metadata", "Begin as gemm/notes.md does") from None
    return SkillNotes.parse(values, where=str(path))
