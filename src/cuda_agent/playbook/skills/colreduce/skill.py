"""Skill (b), columns: reductions over an axis that isn't contiguous, with element-wise operators before and after."""

from cuda_agent.core.enums import Device
from cuda_agent.playbook.kernel import Kernel, reads_along_columns
from cuda_agent.playbook.plan import Buffer, Skill, Step
from cuda_agent.playbook.skills.colreduce import cpu, cuda
from cuda_agent.playbook.skills.shared.launchers import kernel_step


class ColReduce(Skill):
    """Kernels that reduce over their columns while the last row axis is contiguous."""

    def fits(self, work: Kernel) -> bool:
        return work.reduces and not work.scans and not reads_along_columns(work)

    def step(self, work: Kernel, outputs: tuple[Buffer, ...], device: Device, name: str) -> Step:
        text, settings, scratch = (cpu.source(work, name), 1, 0) if device is Device.CPU else cuda.source(work, name)
        return kernel_step(work, outputs, device, name, text, settings, scratch_bytes=scratch, reduces=True)


SKILL = ColReduce
