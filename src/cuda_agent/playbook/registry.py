"""Finds the skills that write kernels: the class `SKILL` of each folder with a `skill.py`, in the order of the
notes."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec

from cuda_agent.playbook.plan import Skill
from cuda_agent.playbook.skills import __name__ as _PACKAGE
from cuda_agent.workspace.skills import skill_notes


@cache
def skills() -> tuple[Skill, ...]:
    modules = {f"{_PACKAGE}.{notes.name}.skill": notes for notes in skill_notes()}
    return tuple(import_module(name).SKILL(notes) for name, notes in modules.items() if find_spec(name))
