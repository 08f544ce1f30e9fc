"""Row reductions in C++: one thread a row, several sweeps over a row that lies in the caches; few long rows are shared
by all threads, sweep by sweep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import C_TYPES, Printer, decode, render
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.passes import Pass, exact, passes
from cuda_agent.playbook.skills.shared.launchers import common, streamed
from cuda_agent.playbook.skills.shared.states import COMBINE, identity

_TILE = 2048
#: columns from which on results are also written past the caches.
_LEAST_STREAMED = 1024
#: rows below which threads share a row, and the elements from which that pays.
_FEW_ROWS, _LONG_ROW = 64, 1 << 14
_KEEP_ELEMENTS = 1 << 16


@dataclass
class _Rows:
    """Prints one row kernel."""

    work: Kernel
    name: str
    split: bool
    sweeps: tuple[Pass, ...] = ()
    kept: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.full = self.work.full()
        self.rows = len(self.work.rows)
        self.last = len(self.work.axes()) - 1
        self.sweeps = passes(self.work, keep=not self.split and ir.numel(self.work.cols) <= _KEEP_ELEMENTS)
        self.kept = {node: sweep for sweep, item in enumerate(self.sweeps) for node in item.kept}
        self.printer = Printer(self.work, self.axis)

    def axis(self, k: int) -> str:
        return "j" if k == self.last else f"i{k}"

    def decode_rows(self) -> list[str]:
        return decode(self.work, self.work.row_axes, "row", "long")

    def decode_outer(self) -> list[str]:
        return decode(self.work, self.work.col_axes[:-1], "outer", "long")

    def position(self) -> str:
        return "outer * INNER + j" if self.last > self.rows else "j"

    def sweep(self, number: int) -> dict[str, Any]:
        """Texts of one sweep; afterwards its reductions are known."""
        item, work, printer = self.sweeps[number], self.work, self.printer
        bodies = [work.nodes[at].args[0] for at in item.reduces]
        before = self._reload(number)
        before += self.printer.row_level([*bodies, *item.kept])
        outside = dict(printer.known)
        lines = printer.statements([*bodies, *item.kept])
        reduces = [
            {"id": at, "kind": expr.name, "type": C_TYPES[expr.type], "identity": identity(expr.name, expr.type)}
            | {
                "combine": COMBINE[expr.name],
                "value": printer.known[expr.args[0]],
                "floats": expr.type in ("f32", "f64"),
            }
            for at, expr in ((at, work.nodes[at]) for at in item.reduces)
        ]
        kept = [f"keep{at}[{self.position()}] = {printer.known[at]};" for at in item.kept]
        printer.known = outside
        for at in item.reduces:
            printer.known[at] = f"r{at}"
        for at in item.kept:
            printer.known[at] = f"keep{at}[{self.position()}]"
        return {
            "reduces": reduces,
            "before": before,
            "decode_outer": self.decode_outer(),
            "body": lines,
            "kept": kept,
        }

    def _reload(self, number: int) -> list[str]:
        """Row indices, and where the row is split over threads, results of earlier sweeps."""
        if not self.split:
            return self.decode_rows() if number == 0 else []
        self.printer.known = {}
        lines = self.decode_rows()
        for item in self.sweeps[:number]:
            for at in item.reduces:
                lines.append(f"const {C_TYPES[self.work.nodes[at].type]} r{at} = all{at}[row];")
                self.printer.known[at] = f"r{at}"
        return lines

    def outputs(self) -> dict[str, Any]:
        """Texts of the last sweep, which stores."""
        full, single = self.work.full_stores, self.work.row_stores
        before = self._reload(len(self.sweeps))
        row_before = list(before)
        state = dict(self.printer.known)
        # What this declares stands before the row's stores, which may use it where the row isn't split.
        before += self.printer.row_level([s.node for s in full])
        whole = self.printer.known
        if self.split:
            self.printer.known = state
        row_lines = self.printer.stored(single, Device.CPU)
        if self.split:
            self.printer.known = whole
        body = self.printer.statements([s.node for s in full])
        written = streamed(self.printer, full, self.last, "j - begin")
        if self.work.cols[-1] < _LEAST_STREAMED:
            written["copies"] = []
        return {
            "before": before,
            "before_rows": row_before,
            "row_stores": row_lines,
            "decode_outer": self.decode_outer(),
            "body": body,
            **written,
        }


def source(work: Kernel, name: str) -> str:
    """Returns the kernel's source."""
    work = exact(work)
    rows, outer, inner = ir.numel(work.rows), ir.numel(work.cols[:-1]), work.cols[-1]
    split = rows < _FEW_ROWS and outer * inner >= _LONG_ROW
    piece = min(inner, max(_TILE, -(-inner // max(1, 64 // outer))))
    printer = _Rows(work, name, split)
    sweeps = [printer.sweep(number) for number in range(len(printer.sweeps))]
    return render(
        "rowreduce/rows.cpp.j2",
        {
            **common(work, Device.CPU, name),
            "outer": outer,
            "inner": inner,
            "tile": _TILE,
            "split": split,
            "parts": -(-inner // piece),
            "piece": piece,
            "sweeps": sweeps,
            "last": printer.outputs(),
            "kept": [{"id": at, "type": C_TYPES[work.nodes[at].type]} for at in sorted(printer.kept)],
        },
    )
