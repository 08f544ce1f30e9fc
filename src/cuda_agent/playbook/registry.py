"""The anchors' skills, in the order in which they are asked."""

from __future__ import annotations

from cuda_agent.playbook.plan import Skill
from cuda_agent.playbook.skills.attention.skill import SKILL as ATTENTION
from cuda_agent.playbook.skills.convolution.skill import SKILL as CONVOLUTION
from cuda_agent.playbook.skills.gemm.skill import SKILL as GEMM
from cuda_agent.playbook.skills.recurrent.skill import SKILL as RECURRENT
from cuda_agent.playbook.skills.scatter.skill import SKILL as SCATTER
from cuda_agent.playbook.skills.selection.skill import SKILL as SELECTION

SKILLS: tuple[Skill, ...] = (GEMM, CONVOLUTION, ATTENTION, SELECTION, SCATTER, RECURRENT)
