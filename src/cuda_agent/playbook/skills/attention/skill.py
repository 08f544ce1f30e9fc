"""Where attention in one kernel applies, and the step that computes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Graph, Node, Ref, TensorMeta
from cuda_agent.playbook import ir
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, Claim, Options, PlanState, Skill, StridedView, pointer
from cuda_agent.playbook.skills.attention import half
from cuda_agent.playbook.skills.attention.layout import is_readable, result_view
from cuda_agent.playbook.skills.shared.operands import buffers, collapsed, launch_step, plain_copy, readable_windows

OPERATOR = "aten.scaled_dot_product_attention.default"
#: the largest width of a head.
MOST_WIDTH = 128
#: the number of settings. The first one is nearly as precise as float32, for tasks that plain TF32 would fail.
CONFIGS = 5
#: elements of a load of 16 bytes. Rows and heads begin at multiples of these.
_WORDS = 4


@dataclass(frozen=True)
class Attention:
    """softmax(q·kᵀ·scale)·v: q [batch…, rows, width], k and v [batch…, keys, width]; `causal`: row i sees keys up to
    i."""

    q: str
    k: str
    v: str
    batch: tuple[int, ...]
    rows: int
    keys: int
    width: int
    scale: float
    causal: bool


def read(node: Node, meta: Callable[[str], TensorMeta], device: Device, precision: Precision) -> Attention | None:
    """What a node computes; None where the kernel isn't written for it: without TF32, with a mask, shared heads or
    heads larger than a warp's registers hold."""
    if node.op != OPERATOR or device is not Device.CUDA or precision is Precision.FP32:
        return None
    names = [arg.ref for arg in node.args[:3] if isinstance(arg, Ref)]
    if len(names) != 3:
        return None
    metas = [meta(name) for name in names]
    q, k, v = (item.shape for item in metas)
    if any(item.dtype != "float32" or 0 in item.shape or len(item.shape) < 3 for item in metas):
        return None
    if not q[:-2] == k[:-2] == v[:-2] or not q[-1] == k[-1] == v[-1] or k[-2] != v[-2]:
        return None
    if q[-1] > MOST_WIDTH or q[-1] % _WORDS:
        return None
    if node.argument(3, "attn_mask") is not None or node.argument(4, "dropout_p", 0.0) != 0.0:
        return None
    if node.argument(7, "enable_gqa", False):
        return None
    scale = node.argument(6, "scale")
    factor = float(scale) if isinstance(scale, int | float) else 1.0 / math.sqrt(q[-1])
    causal = bool(node.argument(5, "is_causal", False))
    return Attention(
        names[0], names[1], names[2],
        batch=q[:-2], rows=q[-2], keys=k[-2], width=q[-1], scale=factor, causal=causal,
    )  # fmt: skip


def batch_levels(sizes: Sequence[int], views: Sequence[StridedView]) -> tuple[tuple[int, ...], ...] | None:
    """Returns the batch dimensions as two levels (size, stride of each view), outer first, or None for more levels."""
    levels = collapsed(sizes, *(view.strides[: len(sizes)] for view in views))
    nothing = (1, *(0 for _ in views))
    return None if len(levels) > 2 else tuple([nothing] * (2 - len(levels)) + levels)


def _plain(node: Node, call: Attention) -> StridedView:
    shape = (*call.batch, call.rows, call.width)
    return StridedView(node.name, shape, ir.contiguous(shape), 0)


class AttentionSkill(Skill):
    """scaled_dot_product_attention in half precision, and in float32 where TF32 is allowed, with or without a causal
    mask."""

    def claim(self, state: PlanState, node: Node) -> Claim | None:
        """Returns the step for an attention that the algebra left whole. Puts its operands into memory."""
        if node.op == OPERATOR and (shared := half.read(node, state.meta, state.device)) is not None:
            return half.claim(state, node, shared)
        call = read(node, state.meta, state.device, state.precision)
        if call is None:
            return None
        names, result = (call.q, call.k, call.v), result_view(state, node, _plain(node, call), _WORDS)
        views = readable_windows(state, names, lambda view: is_readable(view, _WORDS))
        levels = batch_levels(call.batch, [*views, result])
        if levels is None:
            result = _plain(node, call)
            levels = batch_levels(call.batch, [*views, result])
        if levels is None:
            views = [plain_copy(state, name) for name in names]
            levels = batch_levels(call.batch, [*views, result])
        if levels is None:
            return None
        outer, inner = levels
        numbers = [outer[0], inner[0], call.rows, call.keys]
        for place, view in enumerate([*views, result], 1):
            numbers += [outer[place], inner[place], view.strides[-2]]
        name, launcher = f"attention_{cpp_name(node.name)}", f"launch_attention_{call.width}"
        heads = outer[0] * inner[0]
        tunable = f"attention_{heads}x{call.rows}x{call.keys}x{call.width}{'_causal' if call.causal else ''}"
        out = Buffer(node.name, TensorMeta(shape=result.shape, dtype="float32", strides=result.strides))
        step = launch_step(
            name,
            launcher,
            {"void* out": f"{cpp_name(node.name)}.data_ptr()", **dict(zip("qkv", map(pointer, views), strict=True))},
            {"geometry": numbers},
            more={"float scale": f"{call.scale!r}f", "int causal": str(int(call.causal))},
            inputs=buffers(views),
            outputs=(out,),
            files={f"kernels/attention_{call.width}.cu": kernel(call.width)},
            tunables={tunable: CONFIGS},
        )
        return Claim(step, frozenset({node.name}))

    def keeps(
        self, node: Node, meta: Callable[[str], TensorMeta], device: Device, precision: Precision, options: Options
    ) -> bool:
        if node.op == OPERATOR and half.read(node, meta, device) is not None:
            return True
        return options.whole and read(node, meta, device, precision) is not None

    def other_options(self, graph: Graph, device: Device, used: bool) -> Options | None:
        return Options(whole=True) if any(node.op == OPERATOR for node in graph.nodes) else None


def kernel(width: int) -> str:
    """Returns the source for heads of this size."""
    text = resources.files(__package__).joinpath("attention.cu").read_text()
    return text.replace("#define HEAD 64", f"#define HEAD {width}").replace(
        "launch_attention_64", f"launch_attention_{width}"
    )


SKILL = AttentionSkill
