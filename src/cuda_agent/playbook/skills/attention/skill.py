"""The step that computes an attention in one kernel."""

import math
from collections.abc import Callable
from dataclasses import replace
from importlib import resources

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Graph, Node, TensorMeta
from cuda_agent.playbook import ir
from cuda_agent.playbook.algebra.attention import ATTENTION
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, Claim, Options, PlanState, Skill, Step, StridedView, pointer
from cuda_agent.playbook.skills.attention.call import MASKS, Attention, read
from cuda_agent.playbook.skills.attention.layout import Operands, joined_keys, place
from cuda_agent.playbook.skills.shared.operands import buffers, launch_step, library_graph_files

#: the most parts into which the keys of a row are split, and the bytes that their results may take.
_MOST_SPLITS, _SPLIT_BYTES = 64, 64 << 20
#: bytes that the library's engines may use besides.
_LIBRARY_BYTES = 1 << 20


class AttentionSkill(Skill):
    """scaled_dot_product_attention in half precision, and in float32 where TF32 is allowed."""

    def claim(self, state: PlanState, node: Node) -> Claim | None:
        """Returns the step for an attention that the algebra left whole. Puts its operands into memory."""
        call = read(node, state.meta, state.device, state.precision)
        if call is None:
            return None
        joined = joined_keys(state, call)
        call = replace(call, joined=bool(joined))
        found = place(state, node, call, joined or (call.k, call.v))
        if found is None:
            return None
        operands, result, sizes, strides = found
        return Claim(_step(state, node, call, operands, result, sizes, strides), frozenset({node.name}))

    def keeps(
        self, node: Node, meta: Callable[[str], TensorMeta], device: Device, precision: Precision, options: Options
    ) -> bool:
        call = read(node, meta, device, precision)
        return call is not None and (call.is_half or options.whole)

    def other_options(self, graph: Graph, device: Device, used: bool) -> Options | None:
        return Options(whole=True) if any(node.op == ATTENTION for node in graph.nodes) else None


def _step(
    state: PlanState, node: Node, call: Attention, operands: Operands, result: StridedView, sizes: list[int],
    strides: list[int],
) -> Step:  # fmt: skip
    name, heads = cpp_name(node.name), sizes[0] * sizes[1] * call.group
    mask_type = state.meta(call.mask).dtype if call.mask else call.dtype
    items, more = ir.ITEM_BYTES[call.dtype], operands.more or (None, None)
    arguments = {
        "void* out": f"{name}.data_ptr()",
        "q": pointer(operands.q, items),
        "k": pointer(operands.k, items),
        "v": pointer(operands.v, items),
        **{word: pointer(view, items) for word, view in zip(("kk", "vv"), more, strict=False) if call.is_half},
        "mask": pointer(operands.mask, ir.ITEM_BYTES[mask_type]),
    }
    splits = 1
    scratch: list[Buffer] = []
    if call.is_half:
        splits, size = _scratch(call, heads, operands.mask if mask_type == "bool" else None)
        scratch += [Buffer(state.fresh(f"{name}_scratch"), TensorMeta(shape=(size,), dtype="uint8", strides=(1,)))]
        arguments["void* scratch"] = f"{cpp_name(scratch[0].name)}.data_ptr()"
        arguments["long long scratch_bytes"] = f"{size}LL"
    kind = 0 if call.mask is None else MASKS.get(mask_type, 1)
    rest = {"float scale": f"{call.scale!r}f", "float cap": f"{call.cap!r}f"}
    rest |= {"int causal": str(int(call.causal)), "int mask_kind": str(kind)}
    words = [
        *["causal"] * call.causal, *["capped"] * bool(call.cap), *[f"mask_{mask_type}"] * (call.mask is not None)
    ]  # fmt: skip
    tunable = "_".join([call.stem, f"{heads}x{call.group}x{call.rows}x{call.keys}", *words])
    return launch_step(
        f"attention_{name}",
        f"launch_{call.stem}",
        arguments,
        {"geometry": [*sizes, splits, *strides]},
        more=rest,
        inputs=buffers([operands.q, operands.k, operands.v, *operands.more, operands.mask]),
        outputs=(Buffer(node.name, TensorMeta(shape=result.shape, dtype=call.dtype, strides=result.strides)),),
        files={f"kernels/{call.stem}.cu": kernel(call), **(library_files() if call.is_half else {})},
        tunables={tunable: call.form.settings},
        scratch=tuple(scratch),
    )


def _scratch(call: Attention, heads: int, boolean: StridedView | None) -> tuple[int, int]:
    """Returns the most parts into which a row's keys are split, and the bytes that the kernel and the library need. The
    library gets a boolean mask as one that is added."""
    room = heads * call.rows * (call.value + 2) * 4
    splits = max(1, min(_MOST_SPLITS, _SPLIT_BYTES // room))
    own = splits * room if splits > 1 else 0
    added = 0
    if boolean is not None:
        pairs = zip(boolean.shape[:-1], boolean.strides[:-1], strict=True)
        added = 2 * call.keys * math.prod(size for size, step in pairs if step)
    return splits, max(own, heads * call.rows * 4 + added) + _LIBRARY_BYTES


def library_files() -> dict[str, str]:
    """Returns the sources of `launch_attention_library`."""
    text = resources.files(__package__).joinpath("library.cu").read_text()
    return {"kernels/attention_library.cu": text, **library_graph_files()}


def kernel(call: Attention) -> str:
    """Returns the source for heads of these sizes."""
    text = resources.files(__package__).joinpath(call.form.source).read_text()
    lines = {
        "HEAD": ("64", str(call.width)),
        "VALUE": ("64", str(call.value)),
        "ELEMENT": ("__nv_bfloat16", call.form.element),
        "PLAIN": ("1", str(int(call.is_plain))),
        "JOINED": ("0", str(int(call.joined))),
        "LAUNCH": (f"launch_attention_{'half' if call.is_half else 'float32'}", f"launch_{call.stem}"),
    }
    for name, (old, new) in lines.items():
        text = text.replace(f"#define {name} {old}\n", f"#define {name} {new}\n")
    return text


SKILL = AttentionSkill
