"""Column reductions on CUDA: neighbouring threads keep neighbouring results and step along the reduced axis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import C_TYPES, render
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.passes import online, passes
from cuda_agent.playbook.skills.shared.lanes import Lanes, lane_width
from cuda_agent.playbook.skills.shared.launchers import scratch_pointers
from cuda_agent.playbook.skills.shared.states import state_text

_UNROLL = 4
#: blocks that keep the memory of an H200 (132 processors) busy.
_BLOCKS_WANTED = 132 * 4
_MOST_SPLITS = 64
#: steps of a thread, of _UNROLL elements each, whose sum is added to the rest at once: the error of adding N numbers
#: one by one grows with N, that of sums of n with √(N · n + N² / n).
_STEPS = 16
#: elements from which on a thread adds hundreds.
_LONG = 2048


class _Columns(Lanes):
    """Prints one kernel."""

    def __init__(self, work: Kernel, width: int, crooked: bool) -> None:
        super().__init__(work, width, len(work.rows) - 1, crooked=crooked)
        self.sweeps = passes(work, keep=False)

    def _after(self, number: int) -> None:
        """Makes the results of the first sweeps known, as fields of this lane's states."""
        self.printer.known = {}
        for k in range(number):
            self.printer.known |= state_text(self.work, self.sweeps[k].reduces, f"state{k}[j]", "1").results

    def sweep(self, number: int) -> dict[str, Any]:
        reduces = self.sweeps[number].reduces
        parts = self.in_parts(reduces)
        text = state_text(self.work, reduces, f"{'part' if parts else 'state'}{number}[j]", "1")
        self._after(number)
        bodies = list(text.bodies)
        declarations, loads = self.early(self.printer.needed(bodies))
        body = self.printer.statements(bodies)
        for at in bodies:
            body.append(f"const {C_TYPES[self.work.nodes[at].type]} b{at}[1] = {{{self.printer.known[at]}}};")
        early, accumulate = {"declarations": declarations, "loads": loads}, _one_value(text.accumulate)
        return {"state": text, **early, "body": body, "accumulate": accumulate, "in_parts": parts}

    def in_parts(self, reduces: Sequence[int]) -> bool:
        """Returns whether a sweep adds many floats and does nothing else."""
        only_sums = all(self.work.nodes[at].name == "sum" and self.work.nodes[at].type == "f32" for at in reduces)
        return only_sums and ir.numel(self.work.cols) >= _LONG

    def outputs(self) -> dict[str, Any]:
        self._after(len(self.sweeps))
        row_lines = self.printer.stored(self.work.row_stores, Device.CUDA)
        self._after(len(self.sweeps))
        return {"row_stores": row_lines, **self.results(self.work.full_stores)}


def _one_value(lines: Sequence[str]) -> list[str]:
    """Returns the statements of loops over a single value without the loops. `j` is the lane whose state it joins."""
    head = "for (int j = 0; j < 1; ++j) "
    alone = (line.removeprefix(head) for line in lines if line != "#pragma unroll")
    return [re.sub(r"\b(b\d+)\[j\]", r"\1[0]", line) for line in alone]


def configs(outer: int, inner_vectors: int, cols: int) -> list[tuple[int, int, int]]:
    """Returns (threads along results, threads along the reduced axis, blocks that share it), the best guess first."""
    tx = 1
    while tx < 32 and tx < inner_vectors:
        tx *= 2
    shapes = [(tx, 256 // tx), (tx, 512 // tx), (tx, 128 // tx)]
    if inner_vectors >= 64:
        shapes.append((64, 4))
    found = []
    for across, down in shapes:
        down = max(1, min(down, 128))
        while down > 1 and down // 2 >= cols:
            down //= 2
        splits, blocks = 1, outer * -(-inner_vectors // across)
        while splits < _MOST_SPLITS and blocks * splits < _BLOCKS_WANTED and cols // splits > 4 * down * _UNROLL:
            splits *= 2
        found.append((across, down, splits))
    return list(dict.fromkeys(found))


def source(work: Kernel, name: str) -> tuple[str, int, int]:
    """Returns (the kernel's source, number of configs, bytes of scratch)."""
    work = online(work)
    along = len(work.rows) - 1
    width, crooked = lane_width(work, along, cap=4)
    printer = _Columns(work, width, crooked)
    outer, inner_vectors, cols = ir.numel(work.rows[:-1]), work.rows[-1] // width, ir.numel(work.cols)
    choices = configs(outer, inner_vectors, cols)
    most = max(splits for _, _, splits in choices)
    sweeps = [printer.sweep(number) for number in range(len(printer.sweeps))]
    shared, scratch = scratch_pointers(work, name, sweeps, ir.numel(work.rows) * most if most > 1 else 0)
    values = {"width": width, "unroll": _UNROLL, "steps": _STEPS, "sweeps": sweeps, "configs": choices}
    text = render("colreduce/cols.cu.j2", {**shared, **values, "last": printer.outputs()})
    return text, len(choices), max(scratch, 256)
