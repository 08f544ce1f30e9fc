"""Skill (a): a chain of element-wise operators, broadcasting and views as one kernel, with one or more results."""

from cuda_agent.core.enums import Device
from cuda_agent.playbook.codegen import Printer
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.plan import Buffer, Skill, Step
from cuda_agent.playbook.skills.pointwise import tiled
from cuda_agent.playbook.skills.shared.lanes import Lanes, lane_width
from cuda_agent.playbook.skills.shared.launchers import kernel_step, printed, streamed

#: (threads, vectors in flight a thread) on cuda; the first is the default.
CONFIGS = ((256, 2), (256, 1), (128, 4), (512, 2), (256, 4))
_TILE = 2048


def _cuda(work: Kernel, name: str) -> str:
    last = len(work.cols) - 1
    width, crooked = lane_width(work, last)
    texts = Lanes(work, width, last, crooked=crooked).results(work.stores)
    return printed("pointwise/pointwise.cu.j2", work, Device.CUDA, name, width=width, configs=CONFIGS, **texts)


def _cpu(work: Kernel, name: str) -> str:
    last = len(work.cols) - 1
    printer = Printer(work, lambda k: "j" if k == last else f"i{k}", checks=True)
    body = printer.statements([s.node for s in work.stores])
    texts = streamed(printer, work.stores, last, "k")
    return printed("pointwise/pointwise.cpp.j2", work, Device.CPU, name, tile=_TILE, body=body, **texts)


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
            text, settings = tiled.source(work, name, tiles), len(tiles.configs)
        elif device is Device.CUDA:
            text, settings = _cuda(work, name), len(CONFIGS)
        else:
            text = _cpu(work, name)
        return kernel_step(work, outputs, device, name, text, settings)


SKILL = Pointwise
