"""Skill (b), columns: reductions over an axis that isn't contiguous, with element-wise operators before and after."""

from __future__ import annotations

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import TensorMeta
from cuda_agent.playbook.codegen import kernel_files, launcher
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.plan import Buffer, Step
from cuda_agent.playbook.skills.colreduce import cpu, cuda

NAME = "colreduce"


def column_step(work: Kernel, outputs: tuple[Buffer, ...], device: Device, name: str) -> Step:
    """A step for a kernel that reduces over its columns while the last row axis is contiguous."""
    extra: tuple[Buffer, ...] = ()
    if device is Device.CPU:
        text, count = cpu.source(work, name), 1
    else:
        text, count, need = cuda.source(work, name)
        extra = (Buffer(f"{name}_scratch", TensorMeta(shape=(need,), dtype="uint8", strides=(1,))),)
    declaration, call = launcher(work, device, name, tuple(("void", buffer.name) for buffer in extra))
    return Step(
        skill=NAME,
        name=name,
        inputs=work.reads,
        outputs=outputs,
        files=kernel_files(device, name, text, reduces=True),
        declaration=declaration,
        call=call,
        tunables={name: count},
        scratch=extra,
    )
