"""Skill (e), windows: reductions over small sliding windows, with element-wise operators around them, in one kernel."""

from __future__ import annotations

from cuda_agent.core.enums import Device
from cuda_agent.playbook.codegen import kernel_files, launcher
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.plan import Buffer, Step
from cuda_agent.playbook.skills.stencil import cpu, cuda
from cuda_agent.playbook.skills.stencil.window import find

NAME = "stencil"


def stencil_step(work: Kernel, outputs: tuple[Buffer, ...], device: Device, name: str) -> Step | None:
    """A step for a kernel that reduces over a sliding window; None for other reductions, and for windows that no tile
    holds."""
    stencil = find(work)
    if stencil is None:
        return None
    found = cuda.source(stencil, name) if device is Device.CUDA else cpu.source(stencil, name)
    if found is None:
        return None
    text, settings = found
    declaration, call = launcher(work, device, name)
    return Step(
        skill=NAME,
        name=name,
        inputs=work.reads,
        outputs=outputs,
        files=kernel_files(device, name, text),
        declaration=declaration,
        call=call,
        tunables={name: settings},
    )
