"""Column reductions on CUDA: neighbouring threads keep neighbouring results and step along the reduced axis."""

import re
from collections.abc import Sequence
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import C_TYPES, render, storage_type
from cuda_agent.playbook.kernel import Kernel, Store
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.passes import online, passes
from cuda_agent.playbook.skills.shared.lanes import Lanes, lane_width
from cuda_agent.playbook.skills.shared.launchers import scratch_pointers
from cuda_agent.playbook.skills.shared.states import state_text

_UNROLL = 4
#: blocks that keep the memory of an H200 (132 processors) busy.
_BLOCKS_WANTED = 132 * 4
_MOST_SPLITS = 64
#: shared memory that a block has without asking for more.
_SHARED_BYTES = 48 << 10
#: of results that lie along the reduced axis: elements behind a row of a tile, and the size of the axis below which the
#: caches do as well.
_PADDING, _SMALLEST = 2, 16
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

    def outputs(self, tile_bytes: int) -> dict[str, Any]:
        """Returns the texts of the last phase. `tile_bytes`: for each element of a block's tiles."""
        self._after(len(self.sweeps))
        row_lines = self.printer.stored(self.work.row_stores, Device.CUDA)
        self._after(len(self.sweeps))
        roots = [store.node for store in self.work.full_stores]
        declarations, loads = self.early(self.printer.needed(roots))
        body = self.printer.statements(roots)
        turned = [store for store in self.work.full_stores if self._is_turned(store)]
        if sum(ir.ITEM_BYTES[store.dtype] for store in turned) > tile_bytes:
            turned = []
        slots, written = self.write([store for store in self.work.full_stores if store not in turned], body)
        tiles = [self._turn(number, store, body) for number, store in enumerate(turned)]
        early = {"declarations": declarations, "loads": loads}
        return {"row_stores": row_lines, **early, "body": body, "slots": slots, "stores": written, "turned": tiles}

    def _is_turned(self, store: Store) -> bool:
        """Returns whether a result lies along the reduced axis in memory."""
        axis = self.work.col_axes[-1]
        return (
            store.coord.coef((axis, 0)) == 1
            and store.coord.coef((self.along, 0)) > 1
            and self.work.axes()[axis] >= _SMALLEST
        )

    def _turn(self, number: int, store: Store, body: list[str]) -> dict[str, str]:
        """Adds the statement that puts a lane's result into a tile to `body`. Returns the tile."""
        name, type_ = f"turned{number}", storage_type(store.dtype, Device.CUDA)
        body.append(f"{name}[tx * WIDTH + j][u * TY + ty] = narrow<{type_}>({self.printer.known[store.node]});")
        return {"name": name, "type": type_, "target": f"{cpp_name(store.name)}[{self.scalar.address(store.coord)}]"}


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
    states = sum(sweep["state"].bytes for sweep in sweeps) * max(tx * ty for tx, ty, _ in choices)
    most_tile = max(tx * width * (ty * _UNROLL + _PADDING) for tx, ty, _ in choices)
    last = printer.outputs((_SHARED_BYTES - states) // most_tile)
    text = render("colreduce/cols.cu.j2", {**shared, **values, "padding": _PADDING, "last": last})
    return text, len(choices), max(scratch, 256)
