"""Attention in the form that a plan wants: as one operator, for a skill that computes it, or as two products with a
softmax between them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from cuda_agent.core.graph import Arg, Graph, Node, NonFinite, Ref, TensorMeta
from cuda_agent.playbook.algebra.draft import Draft, NoMatch, Rule, aten, is_float, refuse, tensors
from cuda_agent.playbook.algebra.emit import binary, cast, matmul, permute, reshape
from cuda_agent.playbook.algebra.match import order_of
from cuda_agent.playbook.ir import HALF_DTYPES, broadcast, contiguous_meta

ATTENTION = "aten.scaled_dot_product_attention.default"
#: the keyword for a soft cap, which PyTorch's operator doesn't have.
CAP = "soft_cap"
_PRODUCTS = ("aten.matmul.default", "aten.bmm.default")
_COPIES = aten("clone view reshape _unsafe_view")
_CASTS = ("aten._to_copy.default", "aten.to.dtype")
#: without the division that rounds.
_SCALINGS = ("aten.mul.Tensor", "aten.mul.Scalar", "aten.div.Tensor", "aten.div.Scalar")
_SOFTMAX = ("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default")


def _causal_mask(draft: Draft, at: Node, rows: int, columns: int) -> Ref:
    """Emits a mask that is true where column ≤ row. It compares indices, which costs a kernel almost nothing."""
    steps = [draft.emit(at, "aten.arange.default", (n,), contiguous_meta((n,), "int64")) for n in (rows, columns)]
    row = reshape(draft, at, steps[0], (rows, 1))
    return draft.emit(at, "aten.le.Tensor", (steps[1], row), contiguous_meta((rows, columns), "bool"))


def _masked(draft: Draft, at: Node, scores: Ref, mask: Ref) -> Ref:
    """Emits the scores where the mask is true, −inf elsewhere."""
    meta = draft.meta(scores)
    args: tuple[Arg, ...] = (mask, scores, NonFinite(nonfinite="-inf"))
    return draft.emit(at, "aten.where.ScalarOther", args, contiguous_meta(meta.shape, meta.dtype))


def shared_heads(draft: Draft, node: Node) -> str:
    """Attention whose keys and values are repeated for a group of heads each is attention with shared heads: exact."""
    refuse(node.op != ATTENTION)
    q, k, v = tensors(*node.args[:3])
    shared = shared_keys_and_values(draft, k, v)
    if shared is None:
        raise NoMatch
    args: tuple[Arg, ...] = (q, *shared, *node.args[3:])
    return draft.emit(node, ATTENTION, args, draft.meta(node.name), {**node.kwargs, "enable_gqa": True}).ref


def shared_keys_and_values(draft: Draft, k: Ref, v: Ref) -> tuple[Ref, Ref] | None:
    """Returns the keys and values that these repeat for a group of heads each, None where they don't."""
    keys, values = _repeated(draft, k), _repeated(draft, v)
    if keys is None or values is None or draft.meta(keys).shape[-3] != draft.meta(values).shape[-3]:
        return None
    return keys, values


def _repeated(draft: Draft, value: Ref) -> Ref | None:
    """Returns x […, heads, keys, width] where the value is x with each head repeated, one copy after the other."""
    below, meta = draft.node(value), draft.meta(value)
    while below is not None and below.op in _COPIES:
        below = draft.node(below.args[0])
    if below is None or below.op != "aten.expand.default" or not isinstance(below.args[0], Ref):
        return None
    wide, narrow = draft.meta(below.name).shape, draft.meta(below.args[0]).shape
    one = (*wide[:-3], 1, *wide[-2:])
    if (
        len(wide) != len(meta.shape) + 1
        or narrow != one
        or meta.shape[:-3] != wide[:-4]
        or meta.shape[-2:] != wide[-2:]
    ):
        return None
    return reshape(draft, below, below.args[0], (*wide[:-3], *wide[-2:]))


def attention_to_products(draft: Draft, node: Node) -> str:
    """scaled_dot_product_attention(q, k, v) = softmax(q·kᵀ·s + mask)·v with s = 1/√d, by definition, and 0 where the
    mask leaves nothing. The two matrix products may use tensor cores, which torch's float32 path doesn't. One softmax
    kernel is between them. Queries of heads that share their keys are the rows of one product."""
    refuse(node.op != ATTENTION)
    q, k, v = tensors(*node.args[:3])
    mask, causal = node.argument(3, "attn_mask"), node.argument(5, "is_causal", False)
    q_shape, k_shape = draft.meta(q).shape, draft.meta(k).shape
    refuse(node.argument(4, "dropout_p", 0.0) != 0.0 or len(q_shape) < 3 or len(k_shape) != len(q_shape))
    refuse(k_shape[:-2] != draft.meta(v).shape[:-2])
    *lead, heads, rows, width = q_shape
    *others, shared, columns, _ = k_shape
    is_shared = shared == 1 or (heads % shared == 0 and node.argument(7, "enable_gqa", False))
    refuse(lead != others or (heads != shared and not is_shared))
    scale = node.argument(6, "scale")
    factor = scale if isinstance(scale, int | float) else 1.0 / math.sqrt(width)
    rank, together = len(k_shape), (*lead, shared, heads // shared * rows)
    keys = permute(draft, node, k, (*range(rank - 2), rank - 1, rank - 2))
    product = matmul(draft, node, reshape(draft, node, q, (*together, width)), keys)
    scores = binary(draft, node, "mul", reshape(draft, node, product, (*lead, heads, rows, columns)), factor)
    if isinstance(mask, Ref):
        is_bool = draft.meta(mask).dtype == "bool"
        scores = _masked(draft, node, scores, mask) if is_bool else binary(draft, node, "add", scores, mask)
    if causal:
        scores = _masked(draft, node, scores, _causal_mask(draft, node, rows, columns))
    meta = draft.meta(scores)
    softmax = "aten._safe_softmax.default" if isinstance(mask, Ref) else "aten.softmax.int"
    weights = draft.emit(node, softmax, (scores, len(meta.shape) - 1), contiguous_meta(meta.shape, meta.dtype))
    result = matmul(draft, node, reshape(draft, node, weights, (*together, columns)), v)
    final = draft.meta(node.name)
    return cast(draft, node, reshape(draft, node, result, final.shape), final.dtype).ref


@dataclass
class _Scores:
    """softmax's operand as capped(scale · (q·kᵀ)) + masks, where capped(x) = cap·tanh(x / cap), or x for a cap of 0."""

    product: Node
    scale: float = 1.0
    cap: float = 0.0
    masks: list[Ref] = field(default_factory=list)


def may_be_written_out(graph: Graph) -> bool:
    """Returns whether there may be an attention in half precision that `attention_of_products` recognises."""
    half = any(node.op in _PRODUCTS and _is_half(node.outputs[0]) for node in graph.nodes if node.outputs)
    return half and any(node.op in _SOFTMAX for node in graph.nodes)


def _is_half(meta: TensorMeta | None) -> bool:
    return meta is not None and meta.dtype in HALF_DTYPES


def attention_of_products(is_kept: Callable[[Draft, Node], bool]) -> Rule:
    """Returns the rule for attentions that a skill computes as they are."""

    def products_to_attention(draft: Draft, node: Node) -> str:
        """softmax(s·(q·kᵀ) + mask)·v is attention by definition. Scores and weights are no longer rounded to half
        precision between the steps. A row whose scores are all −inf becomes 0 instead of NaN."""
        refuse(node.op not in _PRODUCTS or not _is_half(draft.meta(node.name)))
        weights, v = tensors(*node.args[:2])
        softmax = _through_casts(draft, weights)
        refuse(softmax is None or softmax.op not in _SOFTMAX or not isinstance(softmax.args[1], int))
        assert softmax is not None
        rank = len(draft.meta(softmax.name).shape)
        refuse(rank < 3 or softmax.args[1] not in (-1, rank - 1))
        found = _scores(draft, softmax.args[0])
        q, keys = tensors(*found.product.args[:2])
        k = _transposed(draft, node, keys)
        keywords: dict[str, Arg] = {"scale": found.scale, **({CAP: found.cap} if found.cap else {})}
        shared = shared_keys_and_values(draft, k, v)
        if shared is not None:
            (k, v), keywords["enable_gqa"] = shared, True
        args: tuple[Arg, ...] = (q, k, v, _mask(draft, node, found), 0.0, False)
        meta = draft.meta(node.name)
        made = draft.emit(node, ATTENTION, args, contiguous_meta(meta.shape, meta.dtype), keywords)
        call = draft.node(made)
        if call is None or not is_kept(draft, call):
            draft.prune()
            raise NoMatch
        return made.ref

    return products_to_attention


def _transposed(draft: Draft, at: Node, value: Ref) -> Ref:
    """Returns the value with its last two dimensions exchanged, where they were exchanged before as they were."""
    rank, below = len(draft.meta(value).shape), draft.node(value)
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    if below is not None and order_of(below, rank) == swapped and isinstance(below.args[0], Ref):
        return below.args[0]
    return permute(draft, at, value, swapped)


def _through_casts(draft: Draft, value: Arg) -> Node | None:
    """Returns the node behind casts, to floating-point types, of a value that nothing else reads."""
    node = draft.node(value)
    while node is not None and draft.uses(node.name) == 1:
        if node.op not in _CASTS or not is_float(draft.meta(node.name).dtype):
            return node
        node = draft.node(node.args[0])
    return None


def _scores(draft: Draft, value: Arg) -> _Scores:
    """Reads what softmax gets, from the outside to the product. Raises NoMatch."""
    masks: list[Ref] = []
    scale, cap, scaled = 1.0, 0.0, False
    while (node := _through_casts(draft, value)) is not None:
        if node.op in _PRODUCTS:
            return _Scores(node, scale, cap, masks)
        first, second = node.args[0], node.args[1] if len(node.args) > 1 else None
        number = draft.literal(second)
        if node.op in _SCALINGS and number:
            factor = number if "mul" in node.op else 1.0 / number
            below = _through_casts(draft, first)
            if below is not None and below.op == "aten.tanh.default" and not scaled and factor > 0:
                cap, scale, first = factor, factor, below.args[0]
            else:
                scale *= factor
            scaled, value = True, first
        elif node.op == "aten.add.Tensor" and not scaled and node.argument(2, "alpha", 1) == 1:
            inner, mask = tensors(first, second)
            if _leads_to_product(draft, mask):
                inner, mask = mask, inner
            masks.append(mask)
            value = inner
        else:
            break
    raise NoMatch


def _leads_to_product(draft: Draft, value: Ref) -> bool:
    node = _through_casts(draft, value)
    while node is not None and node.op not in _PRODUCTS:
        following = node.op in (*_SCALINGS, "aten.tanh.default", "aten.add.Tensor")
        node = _through_casts(draft, node.args[0]) if following else None
    return node is not None


def _mask(draft: Draft, at: Node, found: _Scores) -> Ref | None:
    """Emits the sum of what is added to the scores. Raises NoMatch where it doesn't broadcast to them
    or isn't of a floating-point type."""
    if not found.masks:
        return None
    refuse(not all(is_float(draft.meta(mask).dtype) for mask in found.masks))
    scores = draft.meta(found.product.name)
    total = found.masks[0]
    for mask in found.masks[1:]:
        total = binary(draft, at, "add", total, mask)
    refuse(broadcast(draft.meta(total).shape, scores.shape) != scores.shape)
    return total if draft.meta(total).dtype == scores.dtype else cast(draft, at, total, "float32")
