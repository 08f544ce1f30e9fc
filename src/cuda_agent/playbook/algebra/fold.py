"""Folds scales and shifts by weights, and batch norm, into the layer before."""

from cuda_agent.core.graph import Arg, Node, Ref
from cuda_agent.playbook.algebra.draft import Draft, NoMatch, is_float, refuse
from cuda_agent.playbook.algebra.emit import binary, cast, full, reshape, unary, wide
from cuda_agent.playbook.algebra.match import Layer, Term, as_layer, as_term, channel_size, with_weights


def _has_weights(draft: Draft, layer: Layer) -> bool:
    """Returns whether weight and bias don't depend on the input."""
    return draft.is_weight(layer.weight) and (layer.bias is None or draft.is_weight(layer.bias))


def _scaled_weight(draft: Draft, at: Node, layer: Layer, factor: Arg) -> Ref:
    """Emits weight · factor, where the factor is a vector over the output channels, or one number for all of them."""
    weight = wide(draft, at, layer.weight)
    shape = draft.meta(weight).shape
    if not isinstance(factor, Ref) or draft.meta(factor).numel == 1:
        other = reshape(draft, at, factor, ()) if isinstance(factor, Ref) else factor
        return binary(draft, at, "mul", weight, other)
    if not layer.transposed:
        return binary(draft, at, "mul", weight, reshape(draft, at, factor, (shape[0], *[1] * (len(shape) - 1))))
    grouped = (layer.groups, shape[0] // layer.groups, *shape[1:])
    aligned = (layer.groups, 1, shape[1], *[1] * (len(shape) - 2))
    product = binary(draft, at, "mul", reshape(draft, at, weight, grouped), reshape(draft, at, factor, aligned))
    return reshape(draft, at, product, shape)


def _rebuilt(draft: Draft, at: Node, layer: Layer, scale: Arg, shift: Arg) -> Ref:
    """Emits the layer that computes s·(Wx + b) + t: weight sW, bias sb + t. `scale` and `shift` are numbers,
    one-element tensors, vectors over the output channels, or None. They are computed in float32 at least and rounded
    once to the layer's type."""
    dtype = draft.meta(layer.weight).dtype
    weight, bias = layer.weight, layer.bias
    if scale is not None:
        weight = cast(draft, at, _scaled_weight(draft, at, layer, scale), dtype)
    shifted: Ref | None = wide(draft, at, bias) if bias is not None else None
    if shifted is not None and scale is not None:
        shifted = binary(draft, at, "mul", shifted, scale)
    if shift is not None:
        count = (draft.meta(layer.node.name).shape[layer.channel],)
        if isinstance(shift, Ref):
            shift = wide(draft, at, shift)
        if shifted is None and isinstance(shift, Ref) and draft.meta(shift).shape == count:
            shifted = shift
        else:
            work = "float64" if dtype == "float64" else "float32"
            base = shifted if shifted is not None else full(draft, at, count, 0.0, work)
            shifted = binary(draft, at, "add", base, shift)
    args, kwargs = with_weights(layer, weight, cast(draft, at, shifted, dtype) if shifted is not None else None)
    return draft.emit(at, layer.node.op, args, draft.meta(layer.node.name), kwargs)


def _vector(draft: Draft, at: Node, layer: Layer, value: Arg) -> Arg | None:
    """Returns a weight that varies along the output channels only as a vector, 0-dimensional tensor or number; None for
    any other."""
    if not isinstance(value, Ref):
        return draft.literal(value)
    shape = draft.meta(value).shape
    size = channel_size(shape, len(draft.meta(layer.node.name).shape), layer.channel)
    if size is None:
        return None
    return reshape(draft, at, value, (size,) if size > 1 else ())


def _after_layer(draft: Draft, node: Node, ops: tuple[str, ...]) -> tuple[Term, Layer, Arg]:
    """Matches one of these operators on a layer's result that nothing else reads. Its bias, and for a scale its weight,
    must be weights. Returns the term, the layer, and the other operand as a `_vector`. Raises NoMatch."""
    term = as_term(draft, node)
    layer = as_layer(draft, draft.node(term.x)) if term.op in ops else None
    if layer is None or draft.uses(term.x.ref) != 1:
        raise NoMatch
    before, after = draft.meta(layer.node.name), draft.meta(node.name)
    refuse((before.shape, before.dtype) != (after.shape, after.dtype))
    weights = (layer.weight, layer.bias) if "mul" in ops else (layer.bias,)
    vector = None
    if all(part is None or draft.is_weight(part) for part in weights):
        vector = _vector(draft, node, layer, term.other)
    if vector is None:
        raise NoMatch
    return term, layer, vector


def fold_scale(draft: Draft, node: Node) -> str:
    """(xWᵀ + b)·s = x(sW)ᵀ + sb for a weight or number s along the output channels of a linear layer or convolution.
    Likewise for division. Each weight is rounded once, which is within the error of the matrix product."""
    term, layer, scale = _after_layer(draft, node, ("mul", "div"))
    refuse(scale == 0)
    if isinstance(scale, Ref):
        scale = wide(draft, node, scale)
        scale = unary(draft, node, "reciprocal", scale) if term.op == "div" else scale
    elif term.op == "div":
        assert isinstance(scale, int | float)
        scale = 1.0 / scale
    return _rebuilt(draft, node, layer, scale, None).ref


def fold_shift(draft: Draft, node: Node) -> str:
    """(xWᵀ + b) + t = xWᵀ + (b + t) for a weight or number t along the output channels: one rounding less."""
    term, layer, shift = _after_layer(draft, node, ("add", "sub"))
    if term.op == "sub":
        shift = unary(draft, node, "neg", shift) if isinstance(shift, Ref) else -float(str(shift))
    return _rebuilt(draft, node, layer, None, shift).ref


def _batch_norm(draft: Draft, node: Node) -> tuple[Node, float] | None:
    """Returns the call behind a batch norm's result in eval mode, and its eps."""
    call: Node | None = node if len(node.outputs) == 1 else None
    if node.op == "getitem" and node.args[1] == 0:
        call = draft.node(node.args[0])
    training: Arg = False
    if call is None:
        return None
    if call.op == "aten._native_batch_norm_legit_no_training.default":
        eps_index = 6
    elif call.op in ("aten.batch_norm.default", "aten.native_batch_norm.default", "aten.cudnn_batch_norm.default"):
        training, eps_index = call.argument(5, "training"), 7
    else:
        return None
    eps = call.argument(eps_index, "eps")
    if training or not isinstance(eps, float) or any(not draft.is_weight(call.args[i]) for i in (3, 4)):
        return None
    return call, eps


def fold_batch_norm(draft: Draft, node: Node) -> str:
    """In eval mode batch norm is y = s·x + t per channel, with s = γ/√(σ² + ε) and t = β − s·μ from the running
    statistics. After a linear layer or convolution with no other use, s and t are folded into its weight and bias.
    Otherwise one multiplication and one addition per element remain. s and t are computed in float32 at least."""
    found = _batch_norm(draft, node)
    if found is None or node.outputs[0] is None:
        raise NoMatch
    call, eps = found
    x, gamma, beta, mean, variance = call.args[:5]
    assert isinstance(x, Ref) and isinstance(mean, Ref) and isinstance(variance, Ref)
    refuse(not is_float(draft.meta(x).dtype))
    scale = unary(draft, node, "rsqrt", binary(draft, node, "add", wide(draft, node, variance), eps))
    if isinstance(gamma, Ref):
        scale = binary(draft, node, "mul", wide(draft, node, gamma), scale)
    offset = binary(draft, node, "mul", wide(draft, node, mean), scale)
    if isinstance(beta, Ref):
        shift = binary(draft, node, "sub", wide(draft, node, beta), offset)
    else:
        shift = unary(draft, node, "neg", offset)
    layer = as_layer(draft, draft.node(x))
    if layer and layer.channel == 1 and draft.uses(x.ref) == 1 and _has_weights(draft, layer):
        return _rebuilt(draft, node, layer, scale, shift).ref
    aligned = (node.outputs[0].shape[1], *[1] * (len(node.outputs[0].shape) - 2))
    product = binary(draft, node, "mul", wide(draft, node, x), reshape(draft, node, scale, aligned))
    total = binary(draft, node, "add", product, reshape(draft, node, shift, aligned))
    return cast(draft, node, total, node.outputs[0].dtype).ref
