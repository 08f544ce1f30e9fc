"""The attention that a node computes, where a kernel is written for it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Node, Ref, TensorMeta
from cuda_agent.playbook.algebra.attention import ATTENTION, CAP


@dataclass(frozen=True)
class AttentionKernel:
    """A kernel: its source, its C++ type, the largest width of a head, the number of settings, and the elements of a
    load of 16 bytes. Rows and heads begin at multiples of these."""

    source: str
    element: str
    most_width: int
    settings: int
    words: int


#: dtype -> kernel. In half precision: four engines of the library, seven forms of the kernel. In float32 the first
#: setting is nearly as precise as float32, for tasks that plain TF32 would fail.
FORMS = {
    "bfloat16": AttentionKernel("half.cu", "__nv_bfloat16", 256, 11, 8),
    "float16": AttentionKernel("half.cu", "__half", 256, 11, 8),
    "float32": AttentionKernel("float32.cu", "float", 128, 5, 4),
}
#: a mask's dtype -> its number for the launcher. 0 is none, 1 the inputs' own type.
MASKS = {"float32": 2, "bool": 3}


@dataclass(frozen=True)
class Attention:
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
    #: whether the last keys and values are operands of their own.
    joined: bool = False

    @property
    def form(self) -> AttentionKernel:
        return FORMS[self.dtype]

    @property
    def is_half(self) -> bool:
        return self.dtype != "float32"

    @property
    def is_plain(self) -> bool:
        """Whether there is neither a mask nor a soft cap nor a group."""
        return self.mask is None and not self.cap and self.group == 1

    @property
    def _general(self) -> str:
        return "" if self.is_half or self.is_plain else "_general"

    @property
    def stem(self) -> str:
        """The kernel's name: one for all calls with heads of these sizes."""
        value = f"x{self.value}" if self.value != self.width else ""
        return f"attention_{self.dtype}_{self.width}{value}{'_joined' * self.joined}{self._general}"


def read(node: Node, meta: Callable[[str], TensorMeta], device: Device, precision: Precision) -> Attention | None:
    """Returns what a node computes. Returns None where no kernel is written for it: in float32 without TF32, for heads
    larger than a warp's registers hold, and on the CPU."""
    names = [arg.ref for arg in node.args[:3] if isinstance(arg, Ref)]
    if node.op != ATTENTION or device is not Device.CUDA or len(names) != 3:
        return None
    metas = [meta(name) for name in names]
    q, k, v = (item.shape for item in metas)
    dtype, mask = metas[0].dtype, node.argument(3, "attn_mask")
    if dtype not in FORMS or (dtype == "float32" and precision is Precision.FP32):
        return None
    form = FORMS[dtype]
    if any(item.dtype != dtype or 0 in item.shape or len(item.shape) < 3 for item in metas):
        return None
    if not len(q) == len(k) == len(v) or q[-1] != k[-1] or k[:-1] != v[:-1]:
        return None
    if any(width > form.most_width or width % form.words for width in (q[-1], v[-1])):
        return None
    if dtype == "float32" and q[-1] != v[-1]:
        return None
    if node.argument(4, "dropout_p", 0.0) != 0.0 or (mask is not None and not isinstance(mask, Ref)):
        return None
    is_shared = k[-3] == 1 or (k[-3] > 0 and node.argument(7, "enable_gqa", False))
    group = q[-3] // k[-3] if is_shared else 1
    if q[:-3] != k[:-3] or q[-3] != k[-3] * group:
        return None
    if mask is not None and meta(mask.ref).dtype not in (dtype, *MASKS):
        return None
    scale = node.argument(6, "scale")
    return Attention(
        q=names[0],
        k=names[1],
        v=names[2], mask=None if mask is None else mask.ref, batch=k[:-2], group=group, rows=q[-2], keys=k[-2],
        width=q[-1], value=v[-1], scale=float(scale) if isinstance(scale, int | float) else 1.0 / math.sqrt(q[-1]),
        causal=bool(node.argument(5, "is_causal", False)),
        cap=float(str(node.kwargs.get(CAP, 0.0))), dtype=dtype,
    )  # fmt: skip
