"""Row reductions on CUDA where a row fits into the registers of up to 1024 threads: memory is read and written once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import C_TYPES, decode, render, vector_width
from cuda_agent.playbook.expression import Expr
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.passes import Pass, exact, passes
from cuda_agent.playbook.skills.shared.lanes import Lanes
from cuda_agent.playbook.skills.shared.launchers import common
from cuda_agent.playbook.skills.shared.states import FUNCTORS, identity

_MOST_LANES = 1024
#: registers of 4 bytes that one thread may spend on its part of the row.
_MOST_WORDS = 64
#: elements of it, which are float32 while they are worked on.
_MOST_ELEMENTS = 48
#: threads that keep the memory of an H200 (132 processors) busy.
_THREADS_WANTED = 132 * 1024


@dataclass(frozen=True)
class Shape:
    """How a row is spread: `words` registers hold one element's inputs and kept values."""

    rows: int
    row_vectors: int
    width: int
    words: float

    def configs(self) -> list[tuple[int, int, int, int]]:
        """(threads of a block, lanes of a row in a block, vectors of a lane, blocks of a row), the most promising
        first; empty where nothing fits."""
        found = []
        for cluster in (1, 2, 4, 8):
            lanes = 1 if cluster == 1 else 256
            while lanes <= _MOST_LANES:
                vectors = -(-self.row_vectors // (lanes * cluster))
                held = vectors * self.width * self.words
                most = _MOST_WORDS if lanes <= 512 else _MOST_WORDS // 2
                fits = held <= most and vectors * self.width <= _MOST_ELEMENTS
                spread = lanes * cluster
                idle = spread * vectors - self.row_vectors
                if fits and (spread <= self.row_vectors or spread == 1) and idle * 2 <= spread * vectors:
                    found.append((max(128, lanes), lanes, vectors, cluster))
                lanes *= 2
        found.sort(key=self._cost)
        return found[:5]

    def _cost(self, config: tuple[int, int, int, int]) -> float:
        """About 16 registers of row a thread keep enough loads in flight; few rows want more blocks."""
        _, lanes, vectors, cluster = config
        spread = lanes * cluster
        cost = abs(math.log2(vectors * self.width * self.words / 16))
        cost += 0.5 * max(0.0, math.log2(_THREADS_WANTED / (self.rows * spread)))
        cost += 2.0 * (spread * vectors - self.row_vectors) / (spread * vectors)
        # Fewer than four lanes side by side don't fill the memory's 64-byte pieces.
        cost += 0.5 * max(0, 2 - math.log2(lanes))
        return cost + 0.4 * math.log2(cluster) + (0.3 if lanes > 512 else 0.0)


class _Held(Lanes):
    """Prints one kernel. `held` loads differ between rows and stay in registers. Each sweep reads the `shared` ones."""

    def __init__(self, work: Kernel, width: int) -> None:
        super().__init__(work, width, len(work.axes()) - 1)
        self.sweeps: tuple[Pass, ...] = passes(work, keep=True)
        loads = [at for at, e in enumerate(work.nodes) if e.op == "load" and at in self.full and not self.is_late(e)]
        self.held = [at for at in loads if self.rows == 0 or self._moves_with_rows(work.nodes[at])]
        self.shared = [at for at in loads if at not in self.held]

    def _moves_with_rows(self, expr: Expr) -> bool:
        return bool(expr.coord.dynamic) or any(k < self.rows for (k, _), _ in expr.coord.terms)

    def words_per_element(self) -> float:
        """Registers for held loads and kept values."""
        kept = [at for item in self.sweeps for at in item.kept]
        return max(0.5, sum(self.words(at) for at in (*self.held, *kept)))

    def decode_cols(self) -> list[str]:
        return decode(self.work, self.work.col_axes, "vector", "int", scale=self.width)

    def start(self) -> dict[str, Any]:
        """Declarations and loads of what the row holds."""
        declarations, loads = [], []
        for at in self.held:
            declarations.append(f"{self.variable_type(self.work.nodes[at])} x{at}[VECTORS];")
            loads += self.read(at, f"x{at}[v]")
            self.name_load(at, f"x{at}[v]")
        kept = [f"{C_TYPES[self.work.nodes[at].type]} kept{at}[VECTORS * WIDTH];" for s in self.sweeps for at in s.kept]
        return {
            "held_declarations": declarations,
            "held_loads": loads,
            "kept_declarations": kept,
            "decode_rows": decode(self.work, self.work.row_axes, "row", "auto"),
            "decode_cols": self.decode_cols(),
        }

    def shared_loads(self, roots: list[int]) -> list[str]:
        """Loads that are the same for all rows, where a sweep needs them."""
        lines = []
        needed = set(self.printer.needed(roots))
        for at in self.shared:
            if at in needed:
                lines += [f"{self.variable_type(self.work.nodes[at])} s{at};", *self.read(at, f"s{at}")]
                self.name_load(at, f"s{at}")
        return lines

    def sweep(self, number: int) -> dict[str, Any]:
        item, work, printer = self.sweeps[number], self.work, self.printer
        bodies = [work.nodes[at].args[0] for at in item.reduces]
        roots = [*bodies, *item.kept]
        before = self.printer.row_level(roots)
        outside = dict(printer.known)
        loads = self.shared_loads(roots)
        lines = printer.statements(roots)
        reduces = [
            {"id": at, "type": C_TYPES[expr.type], "identity": identity(expr.name, expr.type)}
            | {"op": FUNCTORS[expr.name], "value": printer.known[expr.args[0]]}
            for at, expr in ((at, work.nodes[at]) for at in item.reduces)
        ]
        kept = [f"kept{at}[v * WIDTH + j] = {printer.known[at]};" for at in item.kept]
        printer.known = outside
        for at in item.reduces:
            printer.known[at] = f"r{at}"
        for at in item.kept:
            printer.known[at] = f"kept{at}[v * WIDTH + j]"
        return {
            "before": before,
            "reduces": reduces,
            "decode": self.decode_cols(),
            "loads": loads,
            "body": lines,
            "kept": kept,
        }

    def outputs(self) -> dict[str, Any]:
        full, single = self.work.full_stores, self.work.row_stores
        known = dict(self.printer.known)
        row_lines = self.printer.stored(single, Device.CUDA)
        self.printer.known = known
        roots = [s.node for s in full]
        before = self.printer.row_level(roots)
        loads = self.shared_loads(roots)
        body = self.printer.statements(roots)
        declarations, stores = self.write(full, body)
        return {
            "before": before,
            "row_stores": row_lines,
            "decode": self.decode_cols(),
            "loads": loads,
            "declarations": declarations,
            "body": body,
            "stores": stores,
        }


def source(work: Kernel, name: str) -> tuple[str, int] | None:
    """Returns (the kernel's source, number of configs); None where a row doesn't fit."""
    work = exact(work)
    width = vector_width(work)
    printer = _Held(work, width)
    shape = Shape(ir.numel(work.rows), ir.numel(work.cols) // width, width, printer.words_per_element())
    configs = shape.configs()
    if not configs:
        return None
    start = printer.start()
    sweeps = [printer.sweep(number) for number in range(len(printer.sweeps))]
    text = render(
        "rowreduce/held.cu.j2",
        {
            **common(work, Device.CUDA, name),
            **start,
            "width": width,
            "row_vectors": shape.row_vectors,
            "sweeps": sweeps,
            "last": printer.outputs(),
            "configs": configs,
        },
    )
    return text, len(configs)
