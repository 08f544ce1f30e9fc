"""Where selection among the numbers of a row applies, and the step that computes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import resources

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import Node
from cuda_agent.core.graph import Ref as GraphRef
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, Claim, PlanState, Step, StridedView, pointer
from cuda_agent.playbook.skills.gemm.operands import NotAMatrix, collapsed, contiguous_meta, plain_copy, windows

CONFIGS = 4
#: what is gathered is sorted in shared memory; of a row that is sorted whole, nothing else lies there.
MOST, LONGEST_SORTED = 2048, 16384
#: (place of the dimension among the arguments, of whether the largest come first); the stable form names them.
_SORTS = {"sort.default": (1, 2), "sort.stable": (9, 9)}
_GETITEM = ("getitem", "_operator.getitem", "operator.getitem")
_DECLARATION = (
    'extern "C" int launch_selection(void* values, void* places, const void* x, const long long* shape, int config, '
    "cudaStream_t stream);"
)


@dataclass(frozen=True)
class Selection:
    """Of each row of x [..., size]: the k largest or smallest, sorted, equal ones as they come; or the last of these
    alone. `nan_wins`: a row with NaN gives NaN."""

    x: str
    k: int
    largest: bool
    only_last: bool = False
    nan_wins: bool = False


def read(state: PlanState, node: Node) -> Selection | None:
    """What a node selects; None for other operators, other types, and along other dimensions than the last."""
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
    if dim % len(meta.shape) != len(meta.shape) - 1:
        return None
    size = meta.shape[-1]
    k = (size - 1) // 2 + 1 if by_size else node.argument(1, "k")
    if not isinstance(k, int) or not 1 <= k <= min(size, MOST if name == "topk.default" else size):
        return None
    if name == "topk.default":
        return Selection(x, k, bool(node.argument(3, "largest", True)))
    return Selection(x, k, largest=False, only_last=True, nan_wins=by_size)


def _sorted(state: PlanState, node: Node, dim_at: int, descending_at: int) -> Selection | None:
    """A sort is the selection of all."""
    dim, descending = node.argument(dim_at, "dim", -1), node.argument(descending_at, "descending", False)
    if not isinstance(node.args[0], GraphRef) or not isinstance(dim, int):
        return None
    meta = state.meta(node.args[0].ref)
    if meta.dtype != "float32" or not meta.shape or not 0 < meta.shape[-1] <= LONGEST_SORTED or 0 in meta.shape:
        return None
    if dim % len(meta.shape) != len(meta.shape) - 1:
        return None
    return Selection(node.args[0].ref, meta.shape[-1], bool(descending))


def _rows(view: StridedView) -> int | None:
    """Elements from one row to the next; None where rows aren't contiguous or not evenly apart."""
    pairs = collapsed(view.shape[:-1], view.strides[:-1])
    if (view.shape[-1] > 1 and view.strides[-1] != 1) or len(pairs) > 1:
        return None
    return pairs[0][1] if pairs else view.shape[-1]


class SelectionSkill:
    """topk, kthvalue, median and sort of float32 rows along the last dimension, on cuda."""

    name = "selection"

    def claim(self, state: PlanState, node: Node) -> Claim | None:
        """The step for a selection; None for anything else. Puts the rows into memory where they aren't there yet."""
        if state.device is not Device.CUDA:
            return None
        call = read(state, node)
        if call is None:
            return None
        try:
            (view,) = windows(state, [call.x])
            if _rows(view) is None:
                view = plain_copy(state, call.x)
        except NotAMatrix:
            return None
        stride = _rows(view)
        return None if stride is None else self._claim(state, node, call, view, stride)

    def _claim(self, state: PlanState, node: Node, call: Selection, view: StridedView, stride: int) -> Claim:
        users = [user for user in state.users(node.name) if user.op in _GETITEM]
        picked = {user.args[1]: user.name for user in users}
        names = [picked.get(place) or state.fresh(f"{cpp_name(node.name)}_{place}") for place in (0, 1)]
        metas = [meta for meta in node.outputs if meta is not None]
        shapes = [contiguous_meta(meta.shape, dtype) for meta, dtype in zip(metas, ("float32", "int64"), strict=True)]
        rows, size = math.prod(view.shape[:-1]), view.shape[-1]
        shape = [rows, size, stride, call.k, int(call.largest), int(call.only_last), int(call.nan_wins)]
        name = f"selection_{cpp_name(node.name)}"
        tunable = f"selection_{rows}x{size}_{call.k}"
        lines = [
            f"static const long long shape[] = {{{', '.join(map(str, shape))}}};",
            f"const int status = launch_selection({cpp_name(names[0])}.data_ptr(), {cpp_name(names[1])}.data_ptr(), "
            f"{pointer(view.buffer, view.offset, 4)}, shape, config_{tunable}, stream);",
            f'TORCH_CHECK(status == 0, "{name}: status ", status);',
        ]
        step = Step(
            skill="selection",
            name=name,
            inputs=(view.buffer,),
            outputs=tuple(Buffer(one, meta) for one, meta in zip(names, shapes, strict=True)),
            files={"kernels/selection.cu": resources.files(__package__).joinpath("selection.cu").read_text()},
            declaration=_DECLARATION,
            call="\n".join(["{", *(f"  {line}" for line in lines), "}"]),
            tunables={tunable: CONFIGS},
        )
        return Claim(step, frozenset({node.name, *picked.values()}))


SKILL = SelectionSkill()
