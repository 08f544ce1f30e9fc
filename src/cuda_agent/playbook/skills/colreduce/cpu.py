"""Column reductions in C++: a tile of contiguous results is reduced together, one vector lane a result."""

from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import C_TYPES, COSTS, Printer, decode, notes_values
from cuda_agent.playbook.kernel import Kernel, children
from cuda_agent.playbook.passes import exact, passes
from cuda_agent.playbook.skills.shared.launchers import printed
from cuda_agent.playbook.skills.shared.states import reduction

_TILE = 512
#: tiles below which threads share the reduced axis, and the length from which that pays.
_FEW_TASKS, _LONG = 16, 256


class _Columns:
    """Prints one column kernel."""

    def __init__(self, work: Kernel, split: bool) -> None:
        self.work, self.split, self.full = work, split, work.full()
        self.sweeps = passes(work, keep=False)
        self.printer = Printer(work, lambda k: "j" if k == len(work.rows) - 1 else f"i{k}", checks=True)

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
        also = " reduction(| : bad)" if notes_values(self.work, Device.CPU) else ""
        lines += [
            f"#pragma omp simd{also}",
            "for (long j = begin; j < begin + count; ++j) {",
            *(f"  {line}" for line in body),
        ]
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
        decoded = decode(self.work, self.work.row_axes[:-1], "outer", "long")
        if not self.split:
            return decoded if number == 0 else []
        earlier = [at for item in self.sweeps[:number] for at in item.reduces]
        self.printer.known = {at: f"all{at}[outer * INNER + j]" for at in earlier}
        return decoded

    def sweep(self, number: int) -> dict[str, Any]:
        item, work, printer = self.sweeps[number], self.work, self.printer
        bodies = [work.nodes[at].args[0] for at in item.reduces]
        before = self._begin(number) + self.prepared(bodies, f"_{number}")
        outside = dict(printer.known)
        lines = printer.statements(bodies)
        reduces = [reduction(work, at, printer.known) for at in item.reduces]
        printer.known = outside | {at: f"r{at}[j - begin]" for at in item.reduces}
        return {"reduces": reduces, "before": before, "body": lines}

    def outputs(self) -> dict[str, Any]:
        before = self._begin(len(self.sweeps))
        state = dict(self.printer.known)
        row_lines = self.printer.stored(self.work.row_stores, Device.CPU)
        self.printer.known = state
        before += self.prepared([s.node for s in self.work.full_stores], "_last")
        body = self.printer.stored(self.work.full_stores, Device.CPU)
        return {"before": before, "row_output": row_lines, "body": body}


def source(work: Kernel, name: str) -> str:
    work = exact(work)
    inner, cols = work.rows[-1], ir.numel(work.cols)
    tile = min(_TILE, inner)
    tasks = ir.numel(work.rows[:-1]) * -(-inner // tile)
    split = tasks < _FEW_TASKS and cols >= _LONG
    printer = _Columns(work, split)
    sweeps = [printer.sweep(number) for number in range(len(printer.sweeps))]
    values = {"tile": tile, "split": split, "parts": min(-(-64 // tasks), -(-cols // 32))}
    template = "colreduce/cols.cpp.j2"
    return printed(template, work, Device.CPU, name, **values, sweeps=sweeps, last=printer.outputs())
