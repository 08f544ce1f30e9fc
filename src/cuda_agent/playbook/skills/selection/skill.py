"""Where selection among the numbers of a row applies, and the step that computes it."""

import math
from dataclasses import dataclass
from importlib import resources

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import Node, TensorMeta
from cuda_agent.core.graph import Ref as GraphRef
from cuda_agent.playbook import ir
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, Claim, PlanState, Skill, StridedView, pointer
from cuda_agent.playbook.skills.shared.operands import collapsed, launch_step, readable_windows

CONFIGS, SORT_CONFIGS = 4, 2
#: what is gathered is sorted in shared memory.
MOST = 2048
#: numbers that a warp takes one after the other, faster than it sorts them.
_FEW = 32
#: rows that are sorted whole, by what their keys take of shared memory.
LONGEST_SORTED = {"float32": 32768, "int64": 16384}
#: (place of the dimension among the arguments, of whether the largest come first); the stable form names them.
_SORTS = {"sort.default": (1, 2), "sort.stable": (9, 9)}
_GETITEM = ("getitem", "_operator.getitem", "operator.getitem")


@dataclass(frozen=True)
class Selection:
    """Selects in each row of x along `dim` the k largest or smallest, sorted, with equal ones in their order, or only
    the last of these. `nan_wins`: a row with NaN gives NaN."""

    x: str
    dim: int
    k: int
    largest: bool
    only_last: bool = False
    nan_wins: bool = False


def read(state: PlanState, node: Node) -> Selection | None:
    """Returns the selection that a node computes, None for other operators and types."""
    name = node.op.removeprefix("aten.")
    if name in _SORTS:
        return _sorted(state, node, *_SORTS[name])
    if name not in ("topk.default", "kthvalue.default", "median.dim") or not isinstance(node.args[0], GraphRef):
        return None
    x = node.args[0].ref
    meta = state.meta(x)
    by_size = name == "median.dim"
    dim = node.argument(1 if by_size else 2, "dim", -1)
    if meta.dtype != "float32" or not meta.shape or 0 in meta.shape or not isinstance(dim, int):
        return None
    dim %= len(meta.shape)
    size = meta.shape[dim]
    k = (size - 1) // 2 + 1 if by_size else node.argument(1, "k")
    if not isinstance(k, int) or not 1 <= k <= size:
        return None
    if name == "topk.default":
        most = LONGEST_SORTED[meta.dtype] if k == size else MOST
        return Selection(x, dim, k, bool(node.argument(3, "largest", True))) if k <= most else None
    return Selection(x, dim, k, largest=False, only_last=True, nan_wins=by_size)


def _sorted(state: PlanState, node: Node, dim_at: int, descending_at: int) -> Selection | None:
    """Reads a sort as the selection of all numbers."""
    dim, descending = node.argument(dim_at, "dim", -1), node.argument(descending_at, "descending", False)
    if not isinstance(node.args[0], GraphRef) or not isinstance(dim, int):
        return None
    meta = state.meta(node.args[0].ref)
    if meta.dtype not in LONGEST_SORTED or not meta.shape or 0 in meta.shape:
        return None
    dim %= len(meta.shape)
    if meta.shape[dim] > LONGEST_SORTED[meta.dtype]:
        return None
    return Selection(node.args[0].ref, dim, meta.shape[dim], bool(descending))


def _rows(view: StridedView) -> int | None:
    """Returns the elements from one row to the next, or None where rows aren't contiguous and equally far apart."""
    pairs = collapsed(view.shape[:-1], view.strides[:-1])
    if (view.shape[-1] > 1 and view.strides[-1] != 1) or len(pairs) > 1:
        return None
    return pairs[0][1] if pairs else view.shape[-1]


def _order(rank: int, dim: int) -> list[int]:
    """Returns the dimensions with this one innermost."""
    return [*(d for d in range(rank) if d != dim), dim]


def _innermost(state: PlanState, x: str, dim: int) -> str:
    """Adds a view of the value with this dimension innermost."""
    builder, meta = state.builder, state.meta(x)
    order = _order(len(meta.shape), dim)
    axes = tuple(ir.Axis(order.index(d)) for d in range(len(order)))
    shape = tuple(meta.shape[d] for d in order)
    return builder.view(state.fresh(f"{x}_rows"), shape, builder.resolve(x), axes)


class SelectionSkill(Skill):
    """topk, kthvalue and median of float32 rows, sort of float32 and int64 ones, on cuda. Along another dimension than
    the last one rows are copied first, and the result lies as they do."""

    def claim(self, state: PlanState, node: Node) -> Claim | None:
        """Returns the step for a selection, None for other nodes. Puts the rows into memory."""
        if state.device is not Device.CUDA:
            return None
        call = read(state, node)
        if call is None:
            return None
        last = len(state.meta(call.x).shape) - 1
        by_rows = call.x if call.dim == last else _innermost(state, call.x, call.dim)
        (view,) = readable_windows(state, [by_rows], lambda view: _rows(view) is not None)
        stride = _rows(view)
        if stride is None:
            return None
        picked = {user.args[1]: user.name for user in state.users(node.name) if user.op in _GETITEM}
        rows, size, dtype = math.prod(view.shape[:-1]), view.shape[-1], state.meta(call.x).dtype
        whole = call.k == size and not call.only_last and (size > _FEW or dtype != "float32")
        # Only a sort leaves out an unused result.
        names = [
            picked.get(place) or ("" if whole else state.fresh(f"{cpp_name(node.name)}_{place}")) for place in (0, 1)
        ]
        metas = zip(names, (dtype, "int64"), node.outputs, strict=True)
        outputs = [Buffer(one, _laid(meta, kind, call)) for one, kind, meta in metas if one and meta is not None]
        kind, name = "sort" if whole else "selection", f"selection_{cpp_name(node.name)}"
        shape = [rows, size, stride]
        shape += [int(call.largest), int(dtype == "int64")] if whole else [call.k, int(call.largest)]
        shape += [] if whole else [int(call.only_last), int(call.nan_wins)]
        tunable = f"sort_{rows}x{size}" if whole else f"selection_{rows}x{size}_{call.k}"
        values, places = (f"{cpp_name(one)}.data_ptr()" if one else "nullptr" for one in names)
        step = launch_step(
            name,
            f"launch_{kind}",
            {"void* values": values, "void* places": places, "x": pointer(view, ir.ITEM_BYTES[dtype])},
            {"shape": shape},
            inputs=(view.buffer,),
            outputs=tuple(outputs),
            files={f"kernels/{kind}.cu": resources.files(__package__).joinpath(f"{kind}.cu").read_text()},
            tunables={tunable: SORT_CONFIGS if whole else CONFIGS},
        )
        return Claim(step, frozenset({node.name, *picked.values()}))


def _laid(meta: TensorMeta, dtype: str, call: Selection) -> TensorMeta:
    """Returns the meta of a result whose rows follow each other in memory."""
    if call.only_last:
        return ir.contiguous_meta(meta.shape, dtype)
    strides = ir.ordered_strides(meta.shape, _order(len(meta.shape), call.dim))
    return TensorMeta(shape=meta.shape, dtype=dtype, strides=strides)


SKILL = SelectionSkill
