"""Finds the skills that write kernels: the class `SKILL` of each folder with a `skill.py`, in the order of the
notes."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec

from cuda_agent.playbook.plan import Skill
from cuda_agent.playbook.skills import __name__ as _PACKAGE
from cuda_agent.workspace.skills import SkillNotes, skill_notes


@cache
def skills() -> tuple[Skill, ...]:
    return tuple(_skill(notes) for notes in skill_notes() if find_spec(f"{_PACKAGE}.{notes.name}.skill"))


def _skill(notes: SkillNotes) -> Skill:
    kind: type[Skill] = import_module(f"{_PACKAGE}.{notes.name}.skill").SKILL
    return kind(notes)
