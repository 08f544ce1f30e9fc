"""Lowers two-operand einsum and bilinear layers to products, and convolutions to plain forward ones."""

import math
import string
from collections.abc import Sequence

from cuda_agent.core.graph import Arg, Node, Ref
from cuda_agent.playbook.algebra.draft import Draft, NoMatch, aten, is_float, refuse, tensors
from cuda_agent.playbook.algebra.emit import binary, cast, integers, linear, matmul, permute, reduce, reshape
from cuda_agent.playbook.algebra.match import CONVOLUTIONS
from cuda_agent.playbook.ir import HALF_DTYPES, contiguous_meta

_SMALL = aten("empty.memory_format empty_permuted empty_like zeros zeros_like arange arange.start arange.start_step")
#: operator that puts values at indices -> the place of the values among its arguments.
_SCATTERS = {op: 2 if "index_put" in op else 3 for op in aten(
    "index_put scatter.src scatter.value scatter.reduce scatter.value_reduce scatter_add "
    "scatter_reduce.two index_reduce"
)}  # fmt: skip


def _letters(equation: str, ranks: Sequence[int]) -> tuple[str, str, str] | None:
    """Returns the letters of both operands and the result, with unused letters for an ellipsis. Returns None for forms
    with repeated letters or another number of operands. `ranks` are those of the operands."""
    left, _, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if "->" not in equation or len(terms) != 2:
        return None
    hidden = [
        rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)
    ]
    free = "".join(c for c in string.ascii_letters if c not in equation)[: max(hidden)]
    terms = [t.replace("...", free[len(free) - count :]) for t, count in zip(terms, hidden, strict=True)]
    result = result.replace("...", free)
    if any(len(set(term)) != len(term) or "." in term for term in (*terms, result)):
        return None
    return terms[0], terms[1], result


def einsum_to_matmul(draft: Draft, node: Node) -> str:
    """An einsum of two operands is one batched matrix product between permutations of dimensions: exact. Each letter
    must be shared by both operands and the result (batch), by both operands (summed), or by one operand and the result.
    Without summed letters, or without letters of one operand only, it is an element-wise product with a sum."""
    if node.op != "aten.einsum.default" or not isinstance(node.args[0], str):
        raise NoMatch
    operands = node.args[1]
    if not isinstance(operands, list | tuple) or len(operands) != 2:
        raise NoMatch
    a, b = tensors(*operands)
    refuse(not is_float(draft.meta(a).dtype))
    letters = _letters(node.args[0], (len(draft.meta(a).shape), len(draft.meta(b).shape)))
    if letters is None:
        raise NoMatch
    left, right, result = letters
    mine, theirs = dict(zip(left, draft.meta(a).shape, strict=True)), dict(zip(right, draft.meta(b).shape, strict=True))
    sizes = mine | theirs
    refuse(any(sizes[c] != mine[c] for c in left))
    batch = [c for c in result if c in left and c in right]
    summed = [c for c in left if c in right and c not in result]
    rows, columns = [c for c in result if c not in right], [c for c in result if c not in left]
    refuse(set(left) != {*batch, *summed, *rows} or set(right) != {*batch, *summed, *columns})

    def arranged(value: Ref, term: str, groups: tuple[list[str], ...]) -> Ref:
        order = tuple(term.index(c) for group in groups for c in group)
        shape = [sizes[c] for c in batch] + [math.prod(sizes[c] for c in group) for group in groups[1:]]
        return reshape(draft, node, permute(draft, node, value, order), shape)

    if summed and not rows and not columns:
        whole = binary(draft, node, "mul", arranged(a, left, (batch, summed)), arranged(b, right, (batch, summed)))
        total = reduce(draft, node, "sum", whole, (len(batch),))
        return permute(draft, node, total, tuple(batch.index(c) for c in result)).ref
    x, y = arranged(a, left, (batch, rows, summed)), arranged(b, right, (batch, summed, columns))
    product = matmul(draft, node, x, y) if summed else binary(draft, node, "mul", x, y)
    letters_now = [*batch, *rows, *columns]
    spread = reshape(draft, node, product, [sizes[c] for c in letters_now])
    return permute(draft, node, spread, tuple(letters_now.index(c) for c in result)).ref


def _numbers(value: Arg, dims: int, default: int) -> list[int]:
    found = list(integers(value)) or [default]
    return found * dims if len(found) == 1 else found


def transposed_to_forward(draft: Draft, node: Node) -> str:
    """A transposed convolution of stride 1 is a convolution with the filter mirrored, its channels exchanged and
    padding d·(k − 1) − p: exact. Libraries run forward convolutions faster."""
    refuse(not CONVOLUTIONS.get(node.op) or not draft.is_weight(node.args[1]))
    (x, weight), bias = tensors(*node.args[:2]), node.argument(2, "bias")
    shape = draft.meta(weight).shape
    dims = len(shape) - 2
    stride, padding = _numbers(node.argument(3, "stride"), dims, 1), _numbers(node.argument(4, "padding"), dims, 0)
    extra = _numbers(node.argument(5, "output_padding"), dims, 0)
    dilation = _numbers(node.argument(7, "dilation"), dims, 1)
    groups = node.argument(6, "groups", 1)
    around = [step * (size - 1) - pad for size, step, pad in zip(shape[2:], dilation, padding, strict=True)]
    if not isinstance(groups, int) or max(stride) > 1 or max(extra) > 0 or min(around) < 0:
        raise NoMatch
    meta = draft.meta(weight)
    mirrored = draft.emit(
        node, "aten.flip.default", (weight, list(range(2, dims + 2))), contiguous_meta(shape, meta.dtype)
    )
    grouped = reshape(draft, node, mirrored, (groups, shape[0] // groups, shape[1], *shape[2:]))
    exchanged = permute(draft, node, grouped, (0, 2, 1, *range(3, dims + 3)))
    filters = reshape(draft, node, exchanged, (groups * shape[1], shape[0] // groups, *shape[2:]))
    args: tuple[Arg, ...] = (x, filters, bias, [*[1] * dims], [*around], [*dilation], groups)
    result = draft.meta(node.name)
    return draft.emit(node, f"aten.conv{dims}d.default", args, contiguous_meta(result.shape, result.dtype)).ref


def named_padding(draft: Draft, node: Node) -> str:
    """A convolution padded by name (`valid`, `same`) becomes one padded by numbers: exact. Asymmetric padding pads the
    input instead."""
    name, _, form = node.op.removeprefix("aten.").partition(".")
    refuse(form != "padding" or name not in ("conv1d", "conv2d", "conv3d"))
    (x, weight), bias = tensors(*node.args[:2]), node.argument(2, "bias")
    shape, meta = draft.meta(weight).shape, draft.meta(x)
    dims = len(shape) - 2
    stride, dilation = (_numbers(node.argument(at, key), dims, 1) for at, key in ((3, "stride"), (5, "dilation")))
    totals = [step * (size - 1) for size, step in zip(shape[2:], dilation, strict=True)]
    if node.argument(4, "padding", "valid") == "valid":
        totals = [0] * dims
    if any(total % 2 for total in totals):
        pads: list[Arg] = [number for total in reversed(totals) for number in (0, total % 2)]
        sizes = (*meta.shape[:-dims], *(n + t % 2 for n, t in zip(meta.shape[-dims:], totals, strict=True)))
        x = draft.emit(node, "aten.constant_pad_nd.default", (x, pads, 0.0), contiguous_meta(sizes, meta.dtype))
    half: list[Arg] = [total // 2 for total in totals]
    args: tuple[Arg, ...] = (x, weight, bias, [*stride], half, [*dilation], node.argument(6, "groups", 1))
    result = draft.meta(node.name)
    return draft.emit(node, f"aten.{name}.default", args, contiguous_meta(result.shape, result.dtype)).ref


def four_byte_scatter(draft: Draft, node: Node) -> str:
    """A scatter into 16-bit floats is one into float32, rounded afterwards: exact, but for sums and products, which it
    rounds once. A scatter of known small integers is one into int32: exact. One value at one place needs none."""
    refuse(node.op not in _SCATTERS)
    args, meta, at = list(node.args), draft.meta(node.name), _SCATTERS[node.op]
    if node.op == "aten.index_put.default":
        assert isinstance(args[1], list | tuple)
        refuse(all(draft.meta(index).numel == 1 for index in args[1] if isinstance(index, Ref)))
    is_small = meta.dtype == "int64" and all(_is_small(draft, args[place]) for place in (0, at))
    refuse(meta.dtype not in HALF_DTYPES and not is_small)
    dtype = "int32" if is_small else "float32"
    for place in (0, at):
        value = args[place]
        args[place] = cast(draft, node, value, dtype) if isinstance(value, Ref) else value
    result = draft.emit(node, node.op, args, contiguous_meta(meta.shape, dtype), dict(node.kwargs))
    return cast(draft, node, result, meta.dtype).ref


def _is_small(draft: Draft, value: Arg) -> bool:
    """Returns whether integers are known to fit into 32 bits. Those of a tensor that isn't filled may be any."""
    item, node = draft.inputs.get(value.ref) if isinstance(value, Ref) else None, draft.node(value)
    if item is not None:
        return item.values is not None and all(abs(number) < 1 << 31 for number in item.values)
    if node is None or node.op not in _SMALL:
        return node is None and isinstance(value, int) and abs(value) < 1 << 31
    return all(not isinstance(arg, int) or abs(arg) < 1 << 31 for arg in node.args)


def time_first_to_forward(draft: Draft, node: Node) -> str:
    """conv_tbc(x, w, b, pad) over x [steps, batch, channels] with w [taps, channels, filters] is a 1-D convolution
    between permutations of dimensions: exact."""
    refuse(node.op != "aten.conv_tbc.default")
    (x, weight), bias = tensors(*node.args[:2]), node.args[2]
    padding = node.argument(3, "pad", 0)
    signal = permute(draft, node, x, (1, 2, 0))
    filters = permute(draft, node, weight, (2, 1, 0))
    steps, batch, channels = draft.meta(node.name).shape
    args: tuple[Arg, ...] = (signal, filters, bias, [1], [padding], [1], 1)
    meta = contiguous_meta((batch, channels, steps), draft.meta(node.name).dtype)
    return permute(draft, node, draft.emit(node, "aten.conv1d.default", args, meta), (2, 0, 1)).ref


def bilinear_to_product(draft: Draft, node: Node) -> str:
    """y[b, o] = Σ_ij x1[b, i] W[o, i, j] x2[b, j] is the product of x2 with all matrices of W side by side, then a dot
    product with x1: exact."""
    bias: Arg = None
    if node.op == "aten._trilinear.default" and list(node.args[3:7]) == [[1, 3], [0], [1, 2], [2, 3]]:
        x1, weight, x2 = node.args[:3]
    elif node.op == "aten.bilinear.default":
        x1, x2, weight = node.args[:3]
        bias = node.argument(3, "bias")
    else:
        raise NoMatch
    x1, weight, x2 = tensors(x1, weight, x2)
    meta = draft.meta(node.name)
    (*lead, out), (_, size, other) = meta.shape, draft.meta(weight).shape
    matrices = reshape(draft, node, weight, (out * size, other))
    product = linear(draft, node, x2, matrices, None)
    factors = reshape(draft, node, x1, (*lead, 1, size))
    spread = reshape(draft, node, product, (*lead, out, size))
    total = reduce(draft, node, "sum", binary(draft, node, "mul", spread, factors), (len(lead) + 1,))
    return (binary(draft, node, "add", total, bias) if isinstance(bias, Ref) else total).ref
