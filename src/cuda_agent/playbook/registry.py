"""The anchors' skills, in the order in which they are asked."""

from __future__ import annotations

from cuda_agent.playbook.plan import Skill

SKILLS: tuple[Skill, ...] = ()
