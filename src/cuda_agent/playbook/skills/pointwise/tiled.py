"""Element-wise kernels with operands in another memory order than the result: through tiles in shared memory, so that
both are read and written along their own contiguous axes."""

from dataclasses import dataclass

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import common_width, storage_type, vector_width
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.skills.shared.lanes import Lanes
from cuda_agent.playbook.skills.shared.launchers import printed

#: (elements across, elements along, threads) of a tile; along is the result's contiguous axis, across the operand's.
CONFIGS = ((64, 64, 256), (32, 32, 128), (32, 128, 256), (128, 32, 256))
#: shared memory that a block has without asking for more.
_SHARED_BYTES = 48 << 10
#: below this size of either axis, the caches do as well.
_SMALLEST = 16
#: a tile that covers more than this times the elements that exist comes last.
_WASTE = 1.5


@dataclass(frozen=True)
class Tiling:
    """`loads` are the nodes read through tiles, contiguous along axis `across`; the result is so along the last one."""

    across: int
    loads: tuple[int, ...]
    configs: tuple[tuple[int, int, int], ...]


def tiling(work: Kernel) -> Tiling | None:
    """Returns the tiling of a kernel without reductions, or None where no operand needs one."""
    last, sizes = len(work.cols) - 1, work.cols
    if sizes[last] < _SMALLEST or all(store.coord.coef((last, 0)) != 1 for store in work.stores):
        return None
    by_axis: dict[int, list[int]] = {}
    for at, expr in enumerate(work.nodes):
        if expr.op != "load" or expr.guards or expr.coord.dynamic or expr.coord.coef((last, 0)) <= 1:
            continue
        axis = next((k for k in range(last) if expr.coord.coef((k, 0)) == 1 and sizes[k] >= _SMALLEST), None)
        if axis is not None:
            by_axis.setdefault(axis, []).append(at)
    if not by_axis:
        return None
    across = max(by_axis, key=lambda axis: sum(_moved(work, at) for at in by_axis[axis]))
    loads = tuple(by_axis[across])

    def fits(config: tuple[int, int, int]) -> bool:
        taken = sum(config[1] * (config[0] + _padding(work, at)) * ir.ITEM_BYTES[work.nodes[at].dtype] for at in loads)
        return taken <= _SHARED_BYTES

    def wasteful(config: tuple[int, int, int]) -> bool:
        covered = _rounded(sizes[across], config[0]) * _rounded(sizes[last], config[1])
        return covered > _WASTE * sizes[across] * sizes[last]

    configs = tuple(sorted((config for config in CONFIGS if fits(config)), key=wasteful))
    return Tiling(across, loads, configs) if configs else None


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step


def _moved(work: Kernel, at: int) -> int:
    """Returns the bytes that a load reads."""
    expr = work.nodes[at]
    return ir.ITEM_BYTES[expr.dtype] * ir.numel([work.cols[axis] for (axis, _), _ in expr.coord.terms])


def _padding(work: Kernel, at: int) -> int:
    """Elements behind a tile's row: one bank, so that a column's elements lie in different ones."""
    return max(1, 4 // ir.ITEM_BYTES[work.nodes[at].dtype])


def source(work: Kernel, name: str, found: Tiling) -> str:
    last = len(work.cols) - 1
    lanes = Lanes(work, vector_width(work), last)
    coords = [(work.nodes[at].coord, work.nodes[at].dtype) for at in found.loads]
    tiles = []
    for at in found.loads:
        type_, padding = storage_type(work.nodes[at].dtype, Device.CUDA), _padding(work, at)
        tiles.append({"id": at, "type": type_, "padding": padding, "from": lanes.pointer(at)})
        lanes.texts[at] = f"widen(tile{at}[along_at + j][across_at])"
    read_width = common_width(coords, work.cols[found.across], found.across)
    values = {"k": found.across, "last": last, "tiles": tiles, "configs": found.configs, "read_width": read_width}
    texts = lanes.results(work.stores)
    return printed("pointwise/tiled.cu.j2", work, Device.CUDA, name, width=lanes.width, **values, **texts)
