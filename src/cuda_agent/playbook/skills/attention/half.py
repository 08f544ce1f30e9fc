"""Attention of bfloat16 and float16 tensors, with masks, shared heads, and few queries on many keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import Node, Ref, TensorMeta
from cuda_agent.playbook import ir
from cuda_agent.playbook.algebra.attention import CAP
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, Claim, PlanState, Step, StridedView, pointer
from cuda_agent.playbook.skills.attention.layout import is_readable, result_view
from cuda_agent.playbook.skills.shared.operands import (
    buffers,
    collapsed,
    launch_step,
    library_graph_files,
    plain_copy,
    windows,
)  # fmt: skip

#: dtype -> its C++ type.
TYPES = {"bfloat16": "__nv_bfloat16", "float16": "__half"}
#: the largest width of a head.
MOST_WIDTH = 256
#: seven forms of the kernel, four engines of the library.
CONFIGS = 11
#: elements of a load of 16 bytes. Rows and heads begin at multiples of these.
WORDS = 8
#: mask's dtype -> its number for the launcher; 0 is none.
_MASKS = {"float32": 2, "bool": 3}
#: the most parts into which the keys of a row are split, and the bytes that their results may take.
_MOST_SPLITS, _SPLIT_BYTES = 64, 64 << 20
#: bytes that the library's engines may use besides.
_LIBRARY_BYTES = 1 << 20


@dataclass(frozen=True)
class Half:
    """softmax(capped(q·kᵀ·scale) + mask)·v, where capped(x) = cap·tanh(x / cap), or x for a cap of 0: q [batch…, group,
    rows, width], k [batch…, keys, width], v [batch…, keys, value]. `group` query heads share keys and values. `causal`:
    row i sees keys up to i."""

    q: str
    k: str
    v: str
    mask: str | None
    batch: tuple[int, ...]
    group: int
    rows: int
    keys: int
    width: int
    value: int
    scale: float
    causal: bool
    cap: float
    dtype: str


def read(node: Node, meta: Callable[[str], TensorMeta], device: Device) -> Half | None:
    """Returns what a node computes. Returns None where the kernel isn't written for it."""
    names = [arg.ref for arg in node.args[:3] if isinstance(arg, Ref)]
    if device is not Device.CUDA or len(names) != 3:
        return None
    metas = [meta(name) for name in names]
    q, k, v = (item.shape for item in metas)
    dtype, mask = metas[0].dtype, node.argument(3, "attn_mask")
    if dtype not in TYPES or any(item.dtype != dtype or 0 in item.shape or len(item.shape) < 3 for item in metas):
        return None
    if not len(q) == len(k) == len(v) or q[-1] != k[-1] or k[:-1] != v[:-1]:
        return None
    if any(width > MOST_WIDTH or width % WORDS for width in (q[-1], v[-1])):
        return None
    if node.argument(4, "dropout_p", 0.0) != 0.0 or (mask is not None and not isinstance(mask, Ref)):
        return None
    group = q[-3] // k[-3] if node.argument(7, "enable_gqa", False) and k[-3] else 1
    if q[:-3] != k[:-3] or q[-3] != k[-3] * group:
        return None
    if mask is not None and meta(mask.ref).dtype not in (dtype, *_MASKS):
        return None
    scale = node.argument(6, "scale")
    return Half(
        q=names[0],
        k=names[1],
        v=names[2], mask=None if mask is None else mask.ref, batch=k[:-2], group=group, rows=q[-2], keys=k[-2],
        width=q[-1], value=v[-1], scale=float(scale) if isinstance(scale, int | float) else 1.0 / math.sqrt(q[-1]),
        causal=bool(node.argument(5, "is_causal", False)),
        cap=float(str(node.kwargs.get(CAP, 0.0))), dtype=dtype,
    )  # fmt: skip


def _split(view: StridedView, group: int) -> StridedView:
    """Returns [..., heads, rows, width] with the heads as two dimensions, of which the second has this size."""
    heads, step = view.shape[-3] // group, view.strides[-3]
    shape = (*view.shape[:-3], heads, group, *view.shape[-2:])
    return replace(view, shape=shape, strides=(*view.strides[:-3], step * group, step, *view.strides[-2:]))


def _repeated(state: PlanState, name: str) -> tuple[str, int] | None:
    """Returns the tensor [..., heads, rows, width] that this value repeats for the query heads of a group, as
    `repeat_kv` of the model libraries does, and the group's size."""
    node = state.node(name)
    while node is not None and node.op in ("aten.clone.default", "aten.contiguous.default"):
        node = _source(state, node)
    if node is None or node.op not in ("aten.reshape.default", "aten.view.default", "aten._unsafe_view.default"):
        return None
    shape = state.meta(node.name).shape
    node = _source(state, node)
    while node is not None and node.op in ("aten.clone.default", "aten.contiguous.default"):
        node = _source(state, node)
    if node is None or node.op != "aten.expand.default" or len(state.meta(node.name).shape) != len(shape) + 1:
        return None
    wide = state.meta(node.name).shape
    source = node.args[0]
    if not isinstance(source, Ref) or len(state.meta(source.ref).shape) != len(wide):
        return None
    narrow = state.meta(source.ref).shape
    group = wide[-3]
    if narrow != (*wide[:-3], 1, *wide[-2:]) or shape != (*wide[:-4], wide[-4] * group, *wide[-2:]):
        return None
    return source.ref, group


def _source(state: PlanState, node: Node) -> Node | None:
    first = node.args[0]
    return state.node(first.ref) if isinstance(first, Ref) else None


def _read_where_it_lies(state: PlanState, name: str, copied: bool) -> StridedView:
    (view,) = windows(state, [name])
    return plain_copy(state, name) if copied or not is_readable(view, WORDS) else view


def _shared_heads(state: PlanState, call: Half) -> Half:
    """Returns the call on the keys and values that the graph repeats for the query heads of a group."""
    found = [_repeated(state, name) for name in (call.k, call.v)]
    if call.group > 1 or found[0] is None or found[1] is None or found[0][1] != found[1][1]:
        return call
    (k, group), (v, _) = found[0], found[1]
    return replace(call, k=k, v=v, batch=(*call.batch[:-1], call.batch[-1] // group), group=group)


def _shared(view: StridedView, batch: tuple[int, ...]) -> StridedView:
    """Returns [batch…, rows, width] of keys or values, without the dimension of 1 that a repetition had."""
    if len(view.shape) == len(batch) + 2:
        return view
    return replace(view, shape=(*view.shape[:-3], *view.shape[-2:]), strides=(*view.strides[:-3], *view.strides[-2:]))


def _mask(state: PlanState, call: Half) -> StridedView | None:
    """Returns the window on the mask, broadcast to [batch…, group, rows, keys]."""
    if call.mask is None:
        return None
    (view,) = windows(state, [call.mask])
    sizes = (*call.batch[:-1], call.batch[-1] * call.group, call.rows, call.keys)
    steps = [0 if have == 1 else step for have, step in zip(view.shape, view.strides, strict=True)]
    strides = (*[0] * (len(sizes) - len(steps)), *steps)
    return _split(replace(view, shape=sizes, strides=strides), call.group)


@dataclass(frozen=True)
class _Operands:
    """Windows on q, [batch…, group, rows, width], k, v, the result and the mask."""

    q: StridedView
    k: StridedView
    v: StridedView
    out: StridedView
    mask: StridedView | None

    def geometry(self, call: Half) -> tuple[list[int], list[int]] | None:
        """Returns the sizes and the strides for the launcher, None where the batch has more than two levels."""
        rank = len(call.batch)
        mask = self.mask or StridedView("", (), (0,) * (rank + 3), 0)
        views = (self.q, self.k, self.v, self.out, mask)
        levels = collapsed(call.batch, *(view.strides[:rank] for view in views))
        if len(levels) > 2:
            return None
        outer, inner = [(1, *(0 for _ in views))] * (2 - len(levels)) + levels
        strides = []
        for place, view in enumerate(views, 1):
            strides += [outer[place], inner[place], *view.strides[rank:-1]]
        return [outer[0], inner[0], call.group, call.rows, call.keys], [*strides, mask.strides[-1]]


def claim(state: PlanState, node: Node, call: Half) -> Claim | None:
    """Returns the step for an attention in half precision. Puts its operands into memory."""
    call = _shared_heads(state, call)
    shape = (*call.batch[:-1], call.batch[-1] * call.group, call.rows, call.value)
    plain = StridedView(node.name, shape, ir.contiguous(shape), 0)
    for copied in (False, True):
        q, k, v = (_read_where_it_lies(state, name, copied) for name in (call.q, call.k, call.v))
        result = plain if copied else result_view(state, node, plain, WORDS)
        operands = _Operands(
            _split(q, call.group), _shared(k, call.batch), _shared(v, call.batch), _split(result, call.group),
            _mask(state, call),
        )  # fmt: skip
        numbers = operands.geometry(call)
        if numbers is not None:
            return Claim(_step(state, node, call, operands, result, *numbers), frozenset({node.name}))
    return None


def _step(
    state: PlanState, node: Node, call: Half, operands: _Operands, result: StridedView, sizes: list[int],
    strides: list[int],
) -> Step:  # fmt: skip
    name, heads = cpp_name(node.name), sizes[0] * sizes[1] * call.group
    room = heads * call.rows * (call.value + 2) * 4
    splits = max(1, min(_MOST_SPLITS, _SPLIT_BYTES // room))
    size = max(splits * room if splits > 1 else 0, heads * call.rows * 4) + _LIBRARY_BYTES
    scratch = Buffer(state.fresh(f"{name}_scratch"), TensorMeta(shape=(size,), dtype="uint8", strides=(1,)))
    mask_type = state.meta(call.mask).dtype if call.mask else call.dtype
    launcher = stem(call.dtype, call.width, call.value)
    what = (
        ("_causal" if call.causal else "")
        + ("_capped" if call.cap else "")
        + (f"_mask_{mask_type}" if call.mask else "")
    )
    tunable = f"{launcher}_{heads}x{call.group}x{call.rows}x{call.keys}{what}"
    items = ir.ITEM_BYTES[call.dtype]
    arguments = {
        "void* out": f"{name}.data_ptr()",
        "q": pointer(operands.q, items),
        "k": pointer(operands.k, items),
        "v": pointer(operands.v, items),
        "mask": pointer(operands.mask, ir.ITEM_BYTES[mask_type]),
        "void* scratch": f"{cpp_name(scratch.name)}.data_ptr()",
        "long long scratch_bytes": f"{size}LL",
    }
    kind = 0 if call.mask is None else _MASKS.get(mask_type, 1)
    return launch_step(
        f"attention_{name}",
        f"launch_{launcher}",
        arguments,
        {"geometry": [*sizes, splits, *strides]},
        more={
            "float scale": f"{call.scale!r}f",
            "float cap": f"{call.cap!r}f",
            "int causal": str(int(call.causal)),
            "int mask_kind": str(kind),
        },
        inputs=buffers([operands.q, operands.k, operands.v, operands.mask]),
        outputs=(Buffer(node.name, TensorMeta(shape=result.shape, dtype=call.dtype, strides=result.strides)),),
        files={f"kernels/{launcher}.cu": kernel(call.dtype, call.width, call.value), **library_files()},
        tunables={tunable: CONFIGS},
        scratch=(scratch,),
    )


def library_files() -> dict[str, str]:
    """Returns the sources of `launch_attention_library`."""
    text = resources.files(__package__).joinpath("library.cu").read_text()
    return {"kernels/attention_library.cu": text, **library_graph_files()}


def stem(dtype: str, width: int, value: int) -> str:
    """Returns the name of the kernel for heads of these sizes."""
    return f"attention_{dtype}_{width}" + (f"x{value}" if value != width else "")


def kernel(dtype: str, width: int, value: int) -> str:
    """Returns the source for heads of these sizes."""
    text = resources.files(__package__).joinpath("half.cu").read_text()
    for line, new in (("HEAD 64", f"HEAD {width}"), ("VALUE 64", f"VALUE {value}"),
                      ("ELEMENT __nv_bfloat16", f"ELEMENT {TYPES[dtype]}"),
                      ("LAUNCH launch_attention_half", f"LAUNCH launch_{stem(dtype, width, value)}")):  # fmt: skip
        text = text.replace(f"#define {line}", f"#define {new}")
    return text
