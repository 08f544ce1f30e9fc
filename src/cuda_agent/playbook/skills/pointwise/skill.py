"""Skill (a): a chain of element-wise operators, broadcasting and views as one kernel, with one or more results."""

from __future__ import annotations

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import Printer, decode, render
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.plan import Buffer, Skill, Step
from cuda_agent.playbook.skills.pointwise import tiled
from cuda_agent.playbook.skills.shared.lanes import Lanes, lane_width
from cuda_agent.playbook.skills.shared.launchers import common, kernel_step, streamed

#: (threads, vectors in flight a thread) on cuda; the first is the default.
CONFIGS = ((256, 2), (256, 1), (128, 4), (512, 2), (256, 4))
_TILE = 2048


def _cuda(work: Kernel, name: str) -> str:
    count = ir.numel(work.cols)
    last = len(work.cols) - 1
    width, crooked = lane_width(work, last)
    printer = Lanes(work, width, last, crooked=crooked)
    early, loads = printer.early(range(len(work.nodes)))
    body = printer.printer.statements([s.node for s in work.stores])
    declarations, stores = printer.write(list(work.stores), body)
    return render(
        "pointwise/pointwise.cu.j2",
        {
            **common(work, Device.CUDA, name),
            "elements": count,
            "width": width,
            "vectors": count // width,
            "decode": decode(work, work.col_axes, "vector", "Index", scale=width),
            "early_declarations": early,
            "early_loads": loads,
            "out_declarations": declarations,
            "body": body,
            "stores": stores,
            "configs": CONFIGS,
        },
    )


def _tiled(work: Kernel, name: str, found: tiled.Tiling) -> str:
    return render("pointwise/tiled.cu.j2", {**common(work, Device.CUDA, name), **tiled.values(work, found)})


def _cpu(work: Kernel, name: str) -> str:
    last = len(work.cols) - 1
    inner, outer = work.cols[-1], ir.numel(work.cols[:-1])

    def axis(k: int) -> str:
        return "j" if k == last else f"i{k}"

    printer = Printer(work, axis)
    body = printer.statements([s.node for s in work.stores])
    return render(
        "pointwise/pointwise.cpp.j2",
        {
            **common(work, Device.CPU, name),
            "elements": ir.numel(work.cols),
            "outer": outer,
            "inner": inner,
            "tile": _TILE,
            "outer_body": inner < 256,
            "decode": decode(work, work.col_axes[:-1], "outer", "long"),
            "body": body,
            **streamed(printer, work.stores, last, "k"),
        },
    )


class Pointwise(Skill):
    """Kernels without reductions and scans."""

    def fits(self, work: Kernel) -> bool:
        return not work.reduces and not work.scans

    def step(self, work: Kernel, outputs: tuple[Buffer, ...], device: Device, name: str) -> Step:
        """A kernel over no axis has one element."""
        if not work.cols:
            work = Kernel(work.nodes, work.stores, (), (1,))
        tiles = tiled.tiling(work) if device is Device.CUDA else None
        settings = 3
        if tiles is not None:
            text, settings = _tiled(work, name, tiles), len(tiles.configs)
        elif device is Device.CUDA:
            text, settings = _cuda(work, name), len(CONFIGS)
        else:
            text = _cpu(work, name)
        return kernel_step(work, outputs, device, name, text, settings)


SKILL = Pointwise
