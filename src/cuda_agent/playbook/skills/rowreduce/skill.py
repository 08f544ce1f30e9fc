"""Skill (b), rows: reductions over contiguous columns, with element-wise operators before and after, in one kernel."""

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.kernel import Kernel, reads_along_columns
from cuda_agent.playbook.plan import Buffer, Skill, Step
from cuda_agent.playbook.skills.rowreduce import cpu, held, swept
from cuda_agent.playbook.skills.shared.launchers import kernel_step

#: from this length on, rows that leave only a few numbers are swept, not held.
_LONG_ROW = 1 << 13


def _cuda(work: Kernel, name: str) -> tuple[str, int, int]:
    """(file, number of settings, bytes of scratch)."""
    long_and_small = ir.numel(work.cols) >= _LONG_ROW and not any(s.full for s in work.stores)
    if not long_and_small:
        found = held.source(work, name)
        if found is not None:
            return (*found, 0)
    return swept.source(work, name)


class RowReduce(Skill):
    """Kernels with reductions over contiguous columns."""

    def fits(self, work: Kernel) -> bool:
        return work.reduces and not work.scans and reads_along_columns(work)

    def step(self, work: Kernel, outputs: tuple[Buffer, ...], device: Device, name: str) -> Step:
        if not work.cols:
            work = Kernel(work.nodes, work.stores, work.rows, (1,))
        text, settings, scratch = (cpu.source(work, name), 3, 0) if device is Device.CPU else _cuda(work, name)
        return kernel_step(work, outputs, device, name, text, settings, scratch_bytes=scratch, reduces=True)


SKILL = RowReduce
