"""Row reductions in C++: one thread a row, several sweeps over a row that lies in the caches; few long rows are shared
by all threads, sweep by sweep."""

from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import C_TYPES, Printer, decode
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.passes import exact, passes
from cuda_agent.playbook.skills.shared.launchers import printed, streamed
from cuda_agent.playbook.skills.shared.states import reduction

_TILE = 2048
#: columns from which on results are also written past the caches.
_LEAST_STREAMED = 1024
#: rows below which threads share a row, and the elements from which that pays.
_FEW_ROWS, _LONG_ROW = 64, 1 << 14
_KEEP_ELEMENTS = 1 << 16


class _Rows:
    """Prints one row kernel."""

    def __init__(self, work: Kernel, split: bool) -> None:
        self.work, self.split = work, split
        self.rows, self.last = len(work.rows), len(work.axes()) - 1
        self.sweeps = passes(work, keep=not split and ir.numel(work.cols) <= _KEEP_ELEMENTS)
        self.printer = Printer(work, lambda k: "j" if k == self.last else f"i{k}", checks=True)

    def sweep(self, number: int) -> dict[str, Any]:
        """Texts of one sweep; afterwards its reductions are known."""
        item, work, printer = self.sweeps[number], self.work, self.printer
        roots = [*(work.nodes[at].args[0] for at in item.reduces), *item.kept]
        before = self._reload(number) + printer.row_level(roots)
        outside = dict(printer.known)
        lines = printer.statements(roots)
        reduces = [reduction(work, at, printer.known) for at in item.reduces]
        position = "outer * INNER + j" if self.last > self.rows else "j"
        places = {at: f"keep{at}[{position}]" for at in item.kept}
        kept = [f"{place} = {printer.known[at]};" for at, place in places.items()]
        printer.known = outside | {at: f"r{at}" for at in item.reduces} | places
        return {"reduces": reduces, "before": before, "body": lines, "kept": kept}

    def _reload(self, number: int) -> list[str]:
        """Row indices, and where the row is split over threads, results of earlier sweeps."""
        decoded = decode(self.work, self.work.row_axes, "row", "long")
        if not self.split:
            return decoded if number == 0 else []
        earlier = [at for item in self.sweeps[:number] for at in item.reduces]
        self.printer.known = {at: f"r{at}" for at in earlier}
        return decoded + [f"const {C_TYPES[self.work.nodes[at].type]} r{at} = all{at}[row];" for at in earlier]

    def outputs(self) -> dict[str, Any]:
        """Texts of the last sweep, which stores."""
        full = self.work.full_stores
        row_before = self._reload(len(self.sweeps))
        state = dict(self.printer.known)
        # What this declares stands before the row's stores, which may use it where the row isn't split.
        before = row_before + self.printer.row_level([s.node for s in full])
        whole = self.printer.known
        if self.split:
            self.printer.known = state
        row_lines = self.printer.stored(self.work.row_stores, Device.CPU)
        if self.split:
            self.printer.known = whole
        body = self.printer.statements([s.node for s in full])
        written = streamed(self.printer, full, self.last, "j - begin")
        if self.work.cols[-1] < _LEAST_STREAMED:
            written["copies"] = []
        return {"before": before, "before_rows": row_before, "row_stores": row_lines, "body": body, **written}


def source(work: Kernel, name: str) -> str:
    work = exact(work)
    outer, inner = ir.numel(work.cols[:-1]), work.cols[-1]
    split = ir.numel(work.rows) < _FEW_ROWS and outer * inner >= _LONG_ROW
    piece = min(inner, max(_TILE, -(-inner // max(1, 64 // outer))))
    printer = _Rows(work, split)
    sweeps = [printer.sweep(number) for number in range(len(printer.sweeps))]
    kept = sorted(at for item in printer.sweeps for at in item.kept)
    values = {"tile": _TILE, "split": split, "piece": piece, "kept": kept}
    template = "rowreduce/rows.cpp.j2"
    return printed(template, work, Device.CPU, name, **values, sweeps=sweeps, last=printer.outputs())
