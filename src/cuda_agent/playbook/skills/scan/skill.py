"""Skill (s), scans: running results along a dimension, with element-wise operators before and after, in one kernel."""

from cuda_agent.core.enums import Device
from cuda_agent.playbook.codegen import Printer, render, vector_width
from cuda_agent.playbook.kernel import Kernel, reads_along_columns
from cuda_agent.playbook.plan import Buffer, Skill, Step
from cuda_agent.playbook.skills.shared.lanes import Lanes
from cuda_agent.playbook.skills.shared.launchers import kernel_step, printed
from cuda_agent.playbook.skills.shared.states import COMBINE, reduction

#: (threads of a block, most threads of a row).
_LANES = ((256, 256), (256, 32), (128, 128), (512, 512))
#: (warps of a block, elements a thread).
_WARPS = ((8, 8), (32, 4), (16, 8), (4, 8))
#: neighbouring rows that a CPU thread scans together.
_TILE = 64


def _scans(work: Kernel) -> list[int]:
    return [at for at, expr in enumerate(work.nodes) if expr.op == "scan"]


def _bodies(work: Kernel) -> list[int]:
    return [work.nodes[at].args[0] for at in _scans(work)]


def _printed(template: str, work: Kernel, device: Device, name: str, **values: object) -> str:
    scans = [reduction(work, at, {}) for at in _scans(work)]
    return printed(
        template, work, device, name, backwards=bool(work.nodes[_scans(work)[0]].value), scans=scans, **values
    )


def _lanes(work: Kernel, name: str) -> tuple[str, int]:
    """(file, number of settings): along contiguous rows."""
    width = vector_width(work)
    lanes = Lanes(work, width, len(work.rows))
    vectors = work.cols[0] // width
    configs = list(dict.fromkeys((threads, _most(vectors, most)) for threads, most in _LANES))
    printer, bodies = lanes.printer, _bodies(work)
    printer.known.update({at: f"s{at}[j]" for at in _scans(work)})
    before = printer.row_level([*bodies, *(store.node for store in work.stores)])
    outside = dict(printer.known)
    declarations, loads = lanes.early(printer.needed(bodies), "", "")
    body = printer.statements(bodies) + _kept(work, printer, "j")
    printer.known = outside
    lanes.texts.clear()
    values = {"before": before, "declarations": declarations, "loads": loads, "body": body, "configs": configs}
    last = lanes.results(work.stores, "", "")
    return _printed("scan/lanes.cu.j2", work, Device.CUDA, name, width=width, last=last, **values), len(configs)


def _kept(work: Kernel, printer: Printer, place: str) -> list[str]:
    """Returns the statements that store what is scanned."""
    return [f"s{at}[{place}] = {printer.known[work.nodes[at].args[0]]};" for at in _scans(work)]


def _most(vectors: int, lanes: int) -> int:
    """Threads of a row: no more than twice as many as it has vectors, so that they aren't idle."""
    while lanes > 1 and lanes // 2 >= vectors:
        lanes //= 2
    return lanes


def _warps(work: Kernel, name: str) -> tuple[str, int]:
    """(file, number of settings): rows side by side in memory."""
    printer, bodies = Lanes(work, 1, len(work.rows)).printer, _bodies(work)
    printer.known.update({at: f"s{at}[k]" for at in _scans(work)})
    before = printer.row_level([*bodies, *(store.node for store in work.stores)])
    outside = dict(printer.known)
    body = printer.statements(bodies) + _kept(work, printer, "k")
    printer.known = outside
    # The registers of 1024 threads hold one running result, not several.
    configs = [config for config in _WARPS if config[0] <= 16 or len(bodies) == 1]
    values = {"before": before, "body": body, "last": {"body": printer.stored(work.stores, Device.CUDA)}}
    return _printed("scan/warps.cu.j2", work, Device.CUDA, name, configs=configs, **values), len(configs)


def _cpu(work: Kernel, name: str) -> str:
    """A thread scans neighbouring rows together, so that what lies side by side is read so."""
    last = len(work.rows) - 1
    printer = Printer(work, lambda k: "j" if k > last else "(begin + r)" if k == last else f"i{k}", checks=True)
    printer.known.update({at: f"s{at}[r]" for at in _scans(work)})
    body = printer.statements(_bodies(work))
    for at in _scans(work):
        expr = work.nodes[at]
        body.append(f"s{at}[r] = {COMBINE[expr.name]}(s{at}[r], {printer.known[expr.args[0]]});")
    body += printer.stored(work.stores, Device.CPU)
    inner = work.rows[-1] if work.rows else 1
    values = {"inner": inner, "tile": min(_TILE, inner), "body": body}
    return _printed("scan/scan.cpp.j2", work, Device.CPU, name, **values)


class Scan(Skill):
    """Kernels with scans over their only column axis."""

    def fits(self, work: Kernel) -> bool:
        return work.scans

    def step(self, work: Kernel, outputs: tuple[Buffer, ...], device: Device, name: str) -> Step:
        more = {}
        if device is Device.CPU:
            text, settings = _cpu(work, name), 1
        else:
            text, settings = _lanes(work, name) if reads_along_columns(work) else _warps(work, name)
            more = {"kernels/scan.cuh": render("scan/scan.cuh", {})}
        return kernel_step(work, outputs, device, name, text, settings, reduces=True, more_files=more)


SKILL = Scan
