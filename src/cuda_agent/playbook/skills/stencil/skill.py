"""Skill (e), windows: reductions over small sliding windows, with element-wise operators around them, in one kernel."""

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import Graph
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.plan import Buffer, Options, Skill, Step
from cuda_agent.playbook.skills.shared.launchers import kernel_step
from cuda_agent.playbook.skills.stencil import cpu, cuda
from cuda_agent.playbook.skills.stencil.window import find


class StencilSkill(Skill):
    """Kernels that reduce over a sliding window."""

    def fits(self, work: Kernel) -> bool:
        return work.slides and not work.scans

    def step(self, work: Kernel, outputs: tuple[Buffer, ...], device: Device, name: str) -> Step | None:
        """None for windows that no tile holds."""
        stencil = find(work)
        if stencil is None:
            return None
        found = cuda.source(stencil, name) if device is Device.CUDA else cpu.source(stencil, name)
        return None if found is None else kernel_step(work, outputs, device, name, *found)

    def other_options(self, graph: Graph, device: Device, used: bool) -> Options | None:
        return Options(written_out=True) if used and device is Device.CUDA else None


SKILL = StencilSkill
