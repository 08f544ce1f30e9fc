"""Skill (s), scans: running results along a dimension, with element-wise operators before and after, in one kernel."""

from __future__ import annotations

from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import C_TYPES, Printer, decode, render, vector_width
from cuda_agent.playbook.kernel import Kernel, reads_along_columns
from cuda_agent.playbook.plan import Buffer, Skill, Step
from cuda_agent.playbook.skills.shared.lanes import Lanes
from cuda_agent.playbook.skills.shared.launchers import common, kernel_step
from cuda_agent.playbook.skills.shared.states import COMBINE, FUNCTORS, identity

#: (threads of a block, most threads of a row).
_LANES = ((256, 256), (256, 32), (128, 128), (512, 512))
#: (warps of a block, elements a thread).
_WARPS = ((8, 8), (32, 4), (16, 8), (4, 8))
#: neighbouring rows that a CPU thread scans together.
_TILE = 64


def _scans(work: Kernel) -> list[int]:
    return [at for at, expr in enumerate(work.nodes) if expr.op == "scan"]


def _facts(work: Kernel, device: Device, name: str) -> dict[str, Any]:
    """Returns the values that all templates need."""
    scans = [work.nodes[at] for at in _scans(work)]
    backwards = bool(scans[0].value)
    texts = [
        {
            "id": at,
            "type": C_TYPES[expr.type],
            "identity": identity("max" if expr.name == "logsum" else expr.name, expr.type),
            "op": "LogSum" if expr.name == "logsum" else FUNCTORS[expr.name],
        }
        for at, expr in zip(_scans(work), scans, strict=True)
    ]
    return {
        **common(work, device, name),
        "backwards": backwards,
        "direction": "backwards" if backwards else "forwards",
        "scans": texts,
        "logsum": any(expr.name == "logsum" for expr in scans),
    }


def _lanes(work: Kernel, name: str) -> tuple[str, int]:
    """(file, number of settings): along contiguous rows."""
    width = vector_width(work)
    printer = Lanes(work, width, len(work.rows))
    vectors = work.cols[0] // width
    configs = list(dict.fromkeys((threads, _most(vectors, lanes)) for threads, lanes in _LANES))
    scans, printed = _scans(work), printer.printer
    bodies = [work.nodes[at].args[0] for at in scans]
    roots = [store.node for store in work.stores]
    printed.known.update({at: f"s{at}[j]" for at in scans})
    before = printer.printer.row_level([*bodies, *roots])
    outside = dict(printed.known)
    declarations, loads = _loads(printer, bodies)
    body = printed.statements(bodies)
    body += [f"s{at}[j] = {printed.known[work.nodes[at].args[0]]};" for at in scans]
    printed.known = dict(outside)
    printer.texts.clear()
    last_declarations, last_loads = _loads(printer, roots)
    last = printed.statements(roots)
    values, stores = printer.write(list(work.stores), last)
    text = render(
        "scan/lanes.cu.j2",
        {
            **_facts(work, Device.CUDA, name),
            "width": width,
            "row_vectors": vectors,
            "decode_rows": decode(work, work.row_axes, "row", "auto"),
            "before": before,
            "decode": decode(work, work.col_axes, "vector", "int", scale=width),
            "declarations": declarations,
            "loads": loads,
            "body": body,
            "last": {
                "declarations": last_declarations,
                "loads": last_loads,
                "results": values,
                "body": last,
                "stores": stores,
            },
            "configs": configs,
        },
    )
    return text, len(configs)


def _most(vectors: int, lanes: int) -> int:
    """Threads of a row: no more than twice as many as it has vectors, so that they aren't idle."""
    while lanes > 1 and lanes // 2 >= vectors:
        lanes //= 2
    return lanes


def _loads(printer: Lanes, roots: list[int]) -> tuple[list[str], list[str]]:
    declarations, lines = [], []
    for at in printer.printer.needed(roots):
        expr = printer.work.nodes[at]
        if expr.op == "load" and at in printer.full and not printer.is_late(expr):
            declarations.append(f"{printer.variable_type(expr)} x{at};")
            lines += printer.read(at, f"x{at}")
            printer.name_load(at, f"x{at}")
    return declarations, lines


def _warps(work: Kernel, name: str) -> tuple[str, int]:
    """(file, number of settings): rows side by side in memory."""
    printer = Lanes(work, 1, len(work.rows))
    scans, printed = _scans(work), printer.printer
    bodies = [work.nodes[at].args[0] for at in scans]
    roots = [store.node for store in work.stores]
    printed.known.update({at: f"s{at}[k]" for at in scans})
    before = printer.printer.row_level([*bodies, *roots])
    outside = dict(printed.known)
    body = printed.statements(bodies) + [f"s{at}[k] = {printed.known[work.nodes[at].args[0]]};" for at in scans]
    printed.known = dict(outside)
    last = printed.stored(work.stores, Device.CUDA)
    # The registers of 1024 threads hold one running result, not several.
    configs = [config for config in _WARPS if config[0] <= 16 or len(scans) == 1]
    text = render(
        "scan/warps.cu.j2",
        {
            **_facts(work, Device.CUDA, name),
            "decode_rows": decode(work, work.row_axes, "row", "auto"),
            "before": before,
            "column": f"i{len(work.rows)}",
            "body": body,
            "last": {"body": last},
            "configs": configs,
        },
    )
    return text, len(configs)


def _cpu(work: Kernel, name: str) -> str:
    """A thread scans neighbouring rows together, so that what lies side by side is read so."""
    last = len(work.rows) - 1

    def axis(k: int) -> str:
        return "j" if k == len(work.rows) else "(begin + r)" if k == last else f"i{k}"

    printer = Printer(work, axis)
    inner = work.rows[-1] if work.rows else 1
    scans = _scans(work)
    printer.known.update({at: f"s{at}[r]" for at in scans})
    body = printer.statements([work.nodes[at].args[0] for at in scans])
    for at in scans:
        expr = work.nodes[at]
        combine = "f_logsum" if expr.name == "logsum" else COMBINE[expr.name]
        body.append(f"s{at}[r] = {combine}(s{at}[r], {printer.known[expr.args[0]]});")
    body += printer.stored(work.stores, Device.CPU)
    return render(
        "scan/scan.cpp.j2",
        {
            **_facts(work, Device.CPU, name),
            "outer": ir.numel(work.rows[:-1]),
            "inner": inner,
            "tile": min(_TILE, inner),
            "decode_outer": decode(work, work.row_axes[:-1], "outer", "long"),
            "body": body,
        },
    )


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
