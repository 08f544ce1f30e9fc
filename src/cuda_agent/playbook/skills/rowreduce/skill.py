"""Skill (b), rows: reductions over contiguous columns, with element-wise operators before and after, in one kernel."""

from __future__ import annotations

from cuda_agent.core.enums import Device
from cuda_agent.playbook.codegen import header, launcher
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.plan import Buffer, Step
from cuda_agent.playbook.skills.rowreduce import cpu

NAME = "rowreduce"


def row_step(work: Kernel, outputs: tuple[Buffer, ...], device: Device, name: str) -> Step:
    """A step for a kernel with reductions over its columns."""
    declaration, call = launcher(work, device, name)
    return Step(
        skill=NAME,
        name=name,
        inputs=work.reads,
        outputs=outputs,
        files={f"kernels/{name}.cpp": cpu.source(work, name), **header(device)},
        declaration=declaration,
        call=call,
        tunables={name: 3},
    )
