"""Row reductions on CUDA by sweeps over memory: rows that no registers hold, and long rows that leave few numbers."""

from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import C_TYPES, decode, render, vector_width
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.passes import online, passes
from cuda_agent.playbook.skills.shared.lanes import Lanes
from cuda_agent.playbook.skills.shared.launchers import scratch_pointers
from cuda_agent.playbook.skills.shared.states import StateText, state_text

#: blocks that keep the memory of an H200 (132 processors) busy.
_BLOCKS_WANTED = 132 * 8
_MOST_SPLITS = 1024


class _Swept(Lanes):
    """Prints one kernel family."""

    def __init__(self, work: Kernel, width: int) -> None:
        super().__init__(work, width, len(work.axes()) - 1)
        self.sweeps = passes(work, keep=False)
        self.states: list[StateText] = [state_text(work, item.reduces, "state") for item in self.sweeps]

    def _earlier(self, number: int) -> list[str]:
        """Row indices and the results of earlier sweeps, from their states in memory."""
        self.printer.known = {}
        lines = decode(self.work, self.work.row_axes, "row", "Index")
        for k in range(number):
            text = state_text(self.work, self.sweeps[k].reduces, f"state{k}")
            lines.append(f"const State{k} state{k} = merged<THREADS, SPLITS>(parts{k}, row);")
            lines += self._named(text)
        return lines

    def _named(self, text: StateText) -> list[str]:
        lines = []
        for at, value in text.results.items():
            lines.append(f"const {C_TYPES[self.work.nodes[at].type]} r{at} = {value};")
            self.printer.known[at] = f"r{at}"
        return lines

    def sweep(self, number: int) -> dict[str, Any]:
        text = self.states[number]
        bodies = list(text.bodies)
        before = self._earlier(number) + self.printer.row_level(bodies)
        declarations, loads = self.early(self.printer.needed(bodies))
        body = self.printer.statements(bodies)
        values = [f"{C_TYPES[self.work.nodes[at].type]} b{at}[WIDTH];" for at in bodies]
        body += [f"b{at}[j] = {self.printer.known[at]};" for at in bodies]
        early = {"declarations": declarations, "loads": loads}
        return {"state": text, "before": before, **early, "slots": values, "body": body}

    def outputs(self, rows_only: bool) -> dict[str, Any]:
        single, finish = self.work.row_stores, list[str]()
        if rows_only:
            # The last sweep's own block finishes a row that it alone swept; `row` is decoded there already.
            self._earlier(len(self.sweeps) - 1)
            finish = self._named(self.states[-1]) + self.printer.stored(single, Device.CUDA)
        before = self._earlier(len(self.sweeps))
        known = dict(self.printer.known)
        row_lines = self.printer.stored(single, Device.CUDA)
        self.printer.known = known
        before += self.printer.row_level([s.node for s in self.work.full_stores])
        return {"finish": finish, "before": before, "row_stores": row_lines, **self.results(self.work.full_stores)}


def configs(rows: int, row_vectors: int) -> list[tuple[int, int, int]]:
    """(threads, vectors in flight, blocks of a row), the most promising first."""
    found = []
    for threads, unroll in ((256, 4), (512, 4), (256, 8), (512, 2), (128, 8)):
        splits = 1
        while splits < _MOST_SPLITS and rows * splits < _BLOCKS_WANTED and row_vectors // splits > 2 * threads * unroll:
            splits *= 2
        found.append((threads, unroll, splits))
    return list(dict.fromkeys(found))


def source(work: Kernel, name: str) -> tuple[str, int, int]:
    """Returns (the kernel's source, number of configs, bytes of scratch)."""
    work = online(work)
    width = vector_width(work)
    printer = _Swept(work, width)
    rows, row_vectors = ir.numel(work.rows), ir.numel(work.cols) // width
    choices = configs(rows, row_vectors)
    most = max(splits for _, _, splits in choices)
    rows_only = not work.full_stores
    sweeps = [printer.sweep(number) for number in range(len(printer.sweeps))]
    shared, scratch = scratch_pointers(work, name, sweeps, rows * most)
    values = {"width": width, "sweeps": sweeps, "last": printer.outputs(rows_only), "configs": choices}
    text = render("rowreduce/swept.cu.j2", {**shared, **values, "rows_only": rows_only})
    return text, len(choices), scratch
