"""Row reductions on CUDA where a row fits into the registers of up to 1024 threads: memory is read and written once."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import C_TYPES, vector_width
from cuda_agent.playbook.expression import Expr
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.passes import Pass, exact, passes
from cuda_agent.playbook.skills.shared.lanes import Lanes
from cuda_agent.playbook.skills.shared.launchers import printed
from cuda_agent.playbook.skills.shared.states import reduction

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

    def early(self, nodes: Iterable[int], room: str = "", place: str = "") -> tuple[list[str], list[str]]:
        """Returns no declarations, and statements that read what is the same for all rows where a sweep needs it."""
        return [], self.local([at for at in nodes if at in self.shared], "s")

    def start(self) -> dict[str, Any]:
        """Declarations and loads of what the row holds."""
        declarations, loads = super().early(self.held, "[VECTORS]", "[v]")
        kept = [f"{C_TYPES[self.work.nodes[at].type]} kept{at}[VECTORS * WIDTH];" for s in self.sweeps for at in s.kept]
        return {"held_declarations": declarations, "held_loads": loads, "kept_declarations": kept}

    def sweep(self, number: int) -> dict[str, Any]:
        item, work, printer = self.sweeps[number], self.work, self.printer
        roots = [*(work.nodes[at].args[0] for at in item.reduces), *item.kept]
        before = printer.row_level(roots)
        outside = dict(printer.known)
        _, loads = self.early(printer.needed(roots))
        lines = printer.statements(roots)
        reduces = [reduction(work, at, printer.known) for at in item.reduces]
        places = {at: f"kept{at}[v * WIDTH + j]" for at in item.kept}
        kept = [f"{place} = {printer.known[at]};" for at, place in places.items()]
        printer.known = outside | {at: f"r{at}" for at in item.reduces} | places
        return {"before": before, "reduces": reduces, "loads": loads, "body": lines, "kept": kept}

    def outputs(self) -> dict[str, Any]:
        full, known = self.work.full_stores, dict(self.printer.known)
        row_lines = self.printer.stored(self.work.row_stores, Device.CUDA)
        self.printer.known = known
        before = self.printer.row_level([s.node for s in full])
        return {"before": before, "row_stores": row_lines, **self.results(full)}


def source(work: Kernel, name: str) -> tuple[str, int] | None:
    """Returns (the kernel's source, number of configs); None where a row doesn't fit."""
    work = exact(work)
    width = vector_width(work)
    printer = _Held(work, width)
    row_vectors = ir.numel(work.cols) // width
    configs = Shape(ir.numel(work.rows), row_vectors, width, printer.words_per_element()).configs()
    if not configs:
        return None
    values = {**printer.start(), "width": width, "configs": configs}
    sweeps = [printer.sweep(number) for number in range(len(printer.sweeps))]
    template = "rowreduce/held.cu.j2"
    text = printed(template, work, Device.CUDA, name, **values, sweeps=sweeps, last=printer.outputs())
    return text, len(configs)
