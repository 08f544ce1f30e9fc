"""Column reductions in C++: a tile of contiguous results is reduced together, one vector lane a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import C_TYPES, COSTS, Printer, decode, render
from cuda_agent.playbook.kernel import Kernel, children
from cuda_agent.playbook.passes import Pass, exact, passes
from cuda_agent.playbook.skills.shared.launchers import common
from cuda_agent.playbook.skills.shared.states import COMBINE, identity

_TILE = 512
#: tiles below which threads share the reduced axis, and the length from which that pays.
_FEW_TASKS, _LONG = 16, 256


@dataclass
class _Columns:
    """Prints one column kernel."""

    work: Kernel
    split: bool
    sweeps: tuple[Pass, ...] = ()

    def __post_init__(self) -> None:
        self.full = self.work.full()
        self.rows = len(self.work.rows)
        self.sweeps = passes(self.work, keep=False)
        self.printer = Printer(self.work, self.axis)

    def axis(self, k: int) -> str:
        return "j" if k == self.rows - 1 else f"i{k}"

    def decode_cols(self) -> list[str]:
        return decode(self.work, self.work.col_axes, "col", "long")

    def decode_rows(self) -> list[str]:
        return decode(self.work, self.work.row_axes[:-1], "outer", "long")

    def prepared(self, roots: list[int], suffix: str) -> list[str]:
        """Returns statements before the loop over columns: they compute costly row-level operands as arrays."""
        wanted: set[int] = set()
        for at in self.printer.needed(roots):
            if at in self.full:
                wanted.update(
                    c for c in children(self.work.nodes[at]) if c not in self.full and c not in self.printer.known
                )
        wanted = {at for at in wanted if self.cost(at) >= 4}
        if not wanted:
            return []
        outside = dict(self.printer.known)
        body = self.printer.statements(sorted(wanted))
        lines = [f"alignas(64) {C_TYPES[self.work.nodes[at].type]} w{at}{suffix}[TILE];" for at in sorted(wanted)]
        lines += ["#pragma omp simd", "for (long j = begin; j < begin + count; ++j) {", *(f"  {line}" for line in body)]
        lines += [f"  w{at}{suffix}[j - begin] = {self.printer.known[at]};" for at in sorted(wanted)] + ["}"]
        self.printer.known = outside
        for at in wanted:
            self.printer.known[at] = f"w{at}{suffix}[j - begin]"
        return lines

    def cost(self, at: int) -> int:
        if at in self.printer.known:
            return 0
        expr = self.work.nodes[at]
        return COSTS.get(expr.op, 1 if expr.args else 0) + sum(self.cost(child) for child in children(expr))

    def _begin(self, number: int) -> list[str]:
        if not self.split:
            return self.decode_rows() if number == 0 else []
        self.printer.known = {}
        for item in self.sweeps[:number]:
            for at in item.reduces:
                self.printer.known[at] = f"all{at}[outer * INNER + j]"
        return self.decode_rows()

    def sweep(self, number: int) -> dict[str, Any]:
        item, work, printer = self.sweeps[number], self.work, self.printer
        bodies = [work.nodes[at].args[0] for at in item.reduces]
        before = self._begin(number) + self.prepared(bodies, f"_{number}")
        outside = dict(printer.known)
        lines = printer.statements(bodies)
        arrays, reduces = [], []
        for at in item.reduces:
            expr = work.nodes[at]
            type_, begin = C_TYPES[expr.type], identity(expr.name, expr.type)
            combine = COMBINE[expr.name]
            arrays.append(f"alignas(64) {type_} r{at}[TILE];")
            arrays.append(f"for (long k = 0; k < count; ++k) r{at}[k] = {begin};")
            lines.append(f"r{at}[j - begin] = {combine}(r{at}[j - begin], {printer.known[expr.args[0]]});")
            reduces.append({"id": at, "type": type_, "identity": begin, "combine": combine})
        printer.known = outside
        for at in item.reduces:
            printer.known[at] = f"r{at}[j - begin]"
        columns = self.decode_cols()
        return {"reduces": reduces, "before": before, "arrays": arrays, "decode": columns, "body": lines}

    def outputs(self) -> dict[str, Any]:
        full, single = self.work.full_stores, self.work.row_stores
        before = self._begin(len(self.sweeps))
        state = dict(self.printer.known)
        row_lines = self.printer.stored(single, Device.CPU)
        self.printer.known = state
        before += self.prepared([s.node for s in full], "_last")
        body = self.printer.stored(full, Device.CPU)
        return {"before": before, "row_output": row_lines, "decode": self.decode_cols(), "body": body}


def source(work: Kernel, name: str) -> str:
    """Returns the kernel's source."""
    work = exact(work)
    outer, inner, cols = ir.numel(work.rows[:-1]), work.rows[-1], ir.numel(work.cols)
    tile = min(_TILE, inner)
    tasks = outer * -(-inner // tile)
    split = tasks < _FEW_TASKS and cols >= _LONG
    printer = _Columns(work, split)
    sweeps = [printer.sweep(number) for number in range(len(printer.sweeps))]
    return render(
        "colreduce/cols.cpp.j2",
        {
            **common(work, Device.CPU, name),
            "outer": outer,
            "inner": inner,
            "tile": tile,
            "split": split,
            "parts": min(-(-64 // tasks), -(-cols // 32)),
            "sweeps": sweeps,
            "last": printer.outputs(),
        },
    )
