"""Skill (b), columns: reductions over an axis that isn't contiguous, with element-wise operators before and after."""

from __future__ import annotations

from cuda_agent.core.enums import Device
from cuda_agent.playbook.codegen import header, launcher
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.plan import Buffer, Step
from cuda_agent.playbook.skills.colreduce import cpu

NAME = "colreduce"


def column_step(work: Kernel, outputs: tuple[Buffer, ...], device: Device, name: str) -> Step:
    """A step for a kernel that reduces over its columns while the last row axis is contiguous."""
    declaration, call = launcher(work, device, name)
    return Step(
        skill=NAME,
        name=name,
        inputs=work.reads,
        outputs=outputs,
        files={f"kernels/{name}.cpp": cpu.source(work, name), **header(device)},
        declaration=declaration,
        call=call,
    )
