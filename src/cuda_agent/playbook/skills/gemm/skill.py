"""Where a matrix product applies and the step that computes it."""

import math
from dataclasses import replace
from functools import partial

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Graph, Node, Ref, TensorMeta
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import render
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, Claim, DoesNotApply, Options, PlanState, Skill, Step, StridedView, pointer
from cuda_agent.playbook.skills.gemm.fused import fused, takes
from cuda_agent.playbook.skills.shared.operands import (
    MATH,
    Product,
    batched_matrices,
    buffers,
    flat_matrix,
    launch_step,
    matrix_in_memory_order,
    only_reader,
    plain_copy,
    product_files,
    readable,
    windows,
)

#: the launcher's numbers of types.
_TYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
_OPERATORS = frozenset(f"aten.{name}.default" for name in ("linear", "addmm", "mm", "bmm", "matmul"))
#: cuBLASLt's first sixteen choices and cuBLAS.
CONFIGS = 17
#: with fewer rows, matrices that share their right side are copied into one, since the library would read it again
#: for each.
_FEW_ROWS = 64

#: the launcher's parameters from `m` to `activation`.
_SIZES = "m n k batch lda ldb ldd stride_a stride_b stride_d outer outer_a outer_b outer_d"
_KINDS = "transpose_a transpose_b type math activation"
_NUMBERS = [f"{kind} {name}" for kind, names in (("long long", _SIZES), ("int", _KINDS)) for name in names.split()]


def _check_bias(view: StridedView | None, n: int) -> None:
    """Raises DoesNotApply where the view isn't a vector of n elements in one piece."""
    if view is None:
        return
    if view.shape[-1:] != (n,) or math.prod(view.shape) != n or (n > 1 and view.strides[-1] != 1):
        raise DoesNotApply(view.buffer)


def _operands(node: Node) -> tuple[list[str], bool]:
    """Returns the values of left, right and, where there is one, bias, and whether right is given transposed."""
    names = [arg.ref if isinstance(arg, Ref) else None for arg in (*node.args, *node.kwargs.values())]
    if node.op == "aten.addmm.default":
        names = [*names[1:3], names[0], *names[3:]]
    given = [name for name in names if name is not None]
    if len(given) != len([arg for arg in (*node.args, *node.kwargs.values()) if arg is not None]):
        raise DoesNotApply(node.name)
    return given, node.op == "aten.linear.default"


def product_of(state: PlanState, node: Node) -> Product:
    """Returns the product that a node computes. Raises DoesNotApply for others."""
    meta = node.outputs[0]
    if node.op not in _OPERATORS or meta is None or meta.dtype not in _TYPES or 0 in meta.shape:
        raise DoesNotApply(node.name)
    names, flip = _operands(node)
    metas = [state.meta(name) for name in names]
    if any(item.dtype != meta.dtype or 0 in item.shape for item in metas) or len(metas[1].shape) < 2:
        raise DoesNotApply(node.name)
    if not metas[0].shape or (len(metas[0].shape) == 1 and not flip):
        raise DoesNotApply(node.name)
    views = windows(state, names)
    try:
        return _arranged(views, flip, meta)
    except DoesNotApply:
        bad = [not readable(view) for view in views[:2]] + [view.strides[-1:] != (1,) for view in views[2:]]
        # Where each can be read for itself, all are copied but a matrix on the right.
        bad = bad if any(bad) else [True, len(views[1].shape) > 2, *bad[2:]]
        pairs = zip(views, names, bad, strict=True)
        views = [plain_copy(state, name) if copy else view for view, name, copy in pairs]
        return _arranged(views, flip, meta)


def _arranged(views: list[StridedView], flip: bool, meta: TensorMeta) -> Product:
    """Returns the product of these operands. Raises DoesNotApply where the library can't read them where they lie."""
    x, right, *rest = views
    bias = rest[0] if rest else None
    _check_bias(bias, meta.shape[-1])
    right = replace(right, shape=right.shape[::-1], strides=right.strides[::-1]) if flip else right
    plain = ir.contiguous_meta(meta.shape, meta.dtype)
    whole = flat_matrix(right) if len(right.shape) == 2 else None
    if whole is not None:
        left = flat_matrix(x)
        if left is not None:
            return Product(left, whole, bias, plain)
        ordered = matrix_in_memory_order(x)
        if ordered is not None:
            strides = (*(step * whole.columns for step in ordered[1]), 1)
            return Product(ordered[0], whole, bias, plain.model_copy(update={"strides": strides}))
        if len(x.shape) > 1 and x.shape[-2] < _FEW_ROWS:
            raise DoesNotApply(x.buffer)
    return Product(*batched_matrices(x, right, meta.shape[:-2]), bias, plain)


def _fused_activation(state: PlanState, node: Node) -> tuple[Node | None, int]:
    """Returns the activation after the product that the library's epilogue computes exactly, and its number."""
    user = only_reader(state, node.name)
    if user is not None and user.op == "aten.relu.default":
        return user, 1
    is_exact = user is not None and user.op == "aten.gelu.default" and user.kwargs.get("approximate") == "tanh"
    return (user, 2) if is_exact else (None, 0)


def launch_numbers(product: Product, precision: Precision, activation: int) -> list[int]:
    """Returns the launcher's arguments from `m` to `activation`."""
    a, b = product.left, product.right
    size = a.rows * b.columns
    return [
        *(a.rows, b.columns, a.columns, a.batch, a.ld, b.ld, b.columns, a.batch_stride, b.batch_stride, size),
        *(a.outer, a.outer_stride, b.outer_stride, a.batch * size, int(a.transposed), int(b.transposed)),
        *(_TYPES[product.meta.dtype], MATH[precision], activation),
    ]


def _cuda_step(state: PlanState, node: Node, product: Product) -> Claim:
    tail, activation = _fused_activation(state, node)
    result = tail.name if tail is not None else node.name
    name = f"gemm_{cpp_name(node.name)}"
    a, b, width = product.left, product.right, 4 if product.meta.dtype == "float32" else 2
    layout = "".join("t" if matrix.transposed else "n" for matrix in (a, b))
    tunable = f"gemm_{a.outer * a.batch}x{a.rows}x{b.columns}x{a.columns}_{layout}"
    operands = {"a": pointer(a, width), "b": pointer(b, width), "bias": pointer(product.bias, width)}
    numbers = map(str, launch_numbers(product, state.precision, activation))
    step = launch_step(
        name,
        "launch_gemm",
        {"void* d": f"{cpp_name(result)}.data_ptr()", **operands, **dict(zip(_NUMBERS, numbers, strict=True))},
        {},
        inputs=buffers((a, b, product.bias)),
        outputs=(Buffer(result, product.meta),),
        files=product_files(),
        tunables={tunable: CONFIGS},
    )
    epilogue = partial(fused, product, activation) if takes(product) else None
    return Claim(step, frozenset({node.name, result}), epilogue=epilogue)


def _cpu_step(node: Node, product: Product) -> Claim:
    """torch's own product, for each outer step."""
    values = {"bias": product.bias, "a": product.left, "b": product.right, "out": cpp_name(node.name)}
    step = Step(
        name=f"gemm_{cpp_name(node.name)}",
        inputs=buffers((product.left, product.right, product.bias)),
        outputs=(Buffer(node.name, product.meta),),
        call=render("gemm/cpu.cpp.j2", values).rstrip(),
        includes=("<ATen/ATen.h>",),
    )
    return Claim(step, frozenset({node.name}))


class Gemm(Skill):
    """linear, addmm, mm, bmm and matmul of float32, bfloat16 and float16 operands."""

    def claim(self, state: PlanState, node: Node) -> Claim | None:
        """Returns the step for a matrix product, on cuda together with a following ReLU or tanh-GELU. Puts its
        operands into memory. Raises DoesNotApply for other nodes."""
        product = product_of(state, node)
        return _cuda_step(state, node, product) if state.device is Device.CUDA else _cpu_step(node, product)

    def other_options(self, graph: Graph, device: Device, used: bool) -> Options | None:
        """Returns the plan in which linear layers of one input are one product, where there are such layers."""
        inputs = [node.args[0] for node in graph.nodes if node.op == "aten.linear.default" and _is_half(node)]
        shared = any(isinstance(x, Ref) and inputs.count(x) > 1 for x in inputs)
        return Options(beside=True) if shared and device is Device.CUDA else None


def _is_half(node: Node) -> bool:
    return bool(node.outputs) and node.outputs[0] is not None and node.outputs[0].dtype in ir.HALF_DTYPES


SKILL = Gemm
