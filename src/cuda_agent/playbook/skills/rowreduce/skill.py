"""Skill (b), rows: reductions over contiguous columns, with element-wise operators before and after, in one kernel."""

from __future__ import annotations

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import TensorMeta
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import kernel_files, launcher
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.plan import Buffer, Step
from cuda_agent.playbook.skills.rowreduce import cpu, held, swept

NAME = "rowreduce"
#: from this length on, rows that leave only a few numbers are swept, not held.
_LONG_ROW = 1 << 13


def row_step(work: Kernel, outputs: tuple[Buffer, ...], device: Device, name: str) -> Step:
    """A step for a kernel with reductions over its columns."""
    if not work.cols:
        work = Kernel(work.nodes, work.stores, work.rows, (1,))
    extra: tuple[Buffer, ...] = ()
    if device is Device.CPU:
        text, count = cpu.source(work, name), 3
    else:
        text, count, need = _cuda(work, name)
        if need:
            extra = (Buffer(f"{name}_scratch", TensorMeta(shape=(need,), dtype="uint8", strides=(1,))),)
    pointers = tuple(("void", buffer.name) for buffer in extra)
    declaration, call = launcher(work, device, name, pointers)
    return Step(
        skill=NAME,
        name=name,
        inputs=work.reads,
        outputs=outputs,
        files=kernel_files(device, name, text, reduces=True),
        declaration=declaration,
        call=call,
        tunables={name: count} if count > 1 else {name: 1},
        scratch=extra,
    )


def _cuda(work: Kernel, name: str) -> tuple[str, int, int]:
    """(file, number of settings, bytes of scratch)."""
    long_and_small = ir.numel(work.cols) >= _LONG_ROW and not any(s.full for s in work.stores)
    if not long_and_small:
        found = held.source(work, name)
        if found is not None:
            return (*found, 0)
    return swept.source(work, name)
