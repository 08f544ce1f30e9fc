"""Recognises attention that a module writes as two products with a softmax between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cuda_agent.core.graph import Arg, Node, Ref
from cuda_agent.playbook.algebra.draft import Draft, NoMatch, Rule, refuse, tensors
from cuda_agent.playbook.algebra.emit import binary, cast, permute
from cuda_agent.playbook.ir import broadcast, contiguous_meta

ATTENTION = "aten.scaled_dot_product_attention.default"
#: the keyword for a soft cap, which PyTorch's operator doesn't have.
CAP = "soft_cap"
_PRODUCTS = ("aten.matmul.default", "aten.bmm.default")
_CASTS = ("aten._to_copy.default", "aten.to.dtype")
_SCALINGS = ("aten.mul.", "aten.div.")
_SOFTMAX = ("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default")


@dataclass
class _Scores:
    """softmax's operand as capped(scale · (q·kᵀ)) + masks, where capped(x) = cap·tanh(x / cap), or x for a cap of 0."""

    product: Node
    scale: float = 1.0
    cap: float = 0.0
    masks: list[Ref] = field(default_factory=list)


def attention_of_products(is_kept: Callable[[Draft, Node], bool]) -> Rule:
    """Returns the rule for attentions that a skill computes as they are."""

    def products_to_attention(draft: Draft, node: Node) -> str:
        """softmax(s·(q·kᵀ) + mask)·v is attention by definition. Scores and weights are no longer rounded to half
        precision between the steps."""
        refuse(node.op not in _PRODUCTS or draft.meta(node.name).dtype not in ("bfloat16", "float16"))
        weights, v = tensors(*node.args[:2])
        softmax = _through_casts(draft, weights)
        refuse(softmax is None or softmax.op not in _SOFTMAX or not isinstance(softmax.args[1], int))
        assert softmax is not None
        rank = len(draft.meta(softmax.name).shape)
        refuse(rank < 3 or softmax.args[1] not in (-1, rank - 1))
        found = _scores(draft, softmax.args[0])
        q, keys = tensors(*found.product.args[:2])
        k = permute(draft, node, keys, (*range(rank - 2), rank - 1, rank - 2))
        args: tuple[Arg, ...] = (q, k, v, _mask(draft, node, found), 0.0, False)
        meta = draft.meta(node.name)
        made = draft.emit(node, ATTENTION, args, contiguous_meta(meta.shape, meta.dtype), _keywords(found))
        call = draft.node(made)
        refuse(call is None or not is_kept(draft, call))
        return made.ref

    return products_to_attention


def _keywords(found: _Scores) -> dict[str, Arg]:
    return {"scale": found.scale, **({CAP: found.cap} if found.cap else {})}


def _through_casts(draft: Draft, value: Arg) -> Node | None:
    """Returns the node behind casts of a value that nothing else reads."""
    node = draft.node(value)
    while node is not None and node.op in _CASTS and draft.uses(node.name) == 1:
        node = draft.node(node.args[0])
    return node if node is None or draft.uses(node.name) == 1 else None


def _scores(draft: Draft, value: Arg) -> _Scores:
    """Reads what softmax gets, from the outside to the product. Raises NoMatch."""
    masks: list[Ref] = []
    scale, cap, scaled = 1.0, 0.0, False
    while (node := _through_casts(draft, value)) is not None:
        if node.op in _PRODUCTS:
            return _Scores(node, scale, cap, masks)
        first, second = node.args[0], node.args[1] if len(node.args) > 1 else None
        number = draft.literal(second)
        if node.op.startswith(_SCALINGS) and number:
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
        following = node.op.startswith((*_SCALINGS, "aten.tanh.", "aten.add.Tensor"))
        node = _through_casts(draft, node.args[0]) if following else None
    return node is not None


def _mask(draft: Draft, at: Node, found: _Scores) -> Ref | None:
    """Emits the sum of what is added to the scores. Raises NoMatch where it doesn't broadcast to them."""
    if not found.masks:
        return None
    scores = draft.meta(found.product.name)
    total = found.masks[0]
    for mask in found.masks[1:]:
        total = binary(draft, at, "add", total, mask)
    refuse(broadcast(draft.meta(total).shape, scores.shape) != scores.shape)
    return total if draft.meta(total).dtype == scores.dtype else cast(draft, at, total, "float32")
