"""Rates how natural it is that one operator follows another, and gives the values that each makes.

Seeds are grouped by role, which is finer than their family: `pointwise` has sums of two tensors, logarithms and
comparisons. Weights are given by role; a pair without a weight is never composed. `pointless.py` excludes pairs whose
result is trivial or constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from cuda_agent.tasks.compose.layouts import names_of
from cuda_agent.tasks.compose.pointless import EXTREMES, pointless
from cuda_agent.tasks.records import Seed

_ROLES: dict[str, frozenset[str]] = {
    "softmax": frozenset(("softmax", "softmin", "log_softmax", "softmax2d")),
    "scaling": frozenset((
        "add_scalar", "mul_scalar", "div_scalar", "bias_add", "feature_scale", "channel_bias", "channel_scale",
        "clamp", "clamp_min", "clamp_max", "neg", "masked_fill",
    )),
    "rounding": frozenset((
        "ceil", "floor", "round", "trunc", "sign", "sgn", "frac", "deg2rad", "rad2deg", "nan_to_num",
        "remainder_scalar", "heaviside", "nextafter", "fmod", "remainder", "floor_divide", "copysign", "ldexp",
        "float_power",
    )),
    "comparison": frozenset((
        "gt", "ge", "lt", "le", "isclose", "logical_and", "logical_xor", "signbit", "heaviside_scalar",
    )),
    "ordering": frozenset((
        "sort", "argsort", "msort", "topk", "kthvalue", "median", "nanmedian", "quantile", "argmax", "argmin",
    )),
    "total": frozenset((
        "total", "average", "dist", "trace", "any", "all", "count_nonzero", "std_mean", "var_mean", "aminmax",
        "matrix_norm",
    )),
    "distance": frozenset(("cdist", "pairwise_distance", "cosine_similarity", "vecdot", "dot", "cross")),
    "resampling": frozenset((
        "pixel_shuffle", "pixel_unshuffle", "upsample_nearest", "upsample_bilinear", "upsample_bicubic",
        "upsample_linear", "upsample_trilinear", "downsample_area", "grid_sample",
    )),
    "joining": frozenset(("cat", "stack", "hstack", "vstack", "dstack", "column_stack", "block_diag", "meshgrid_sum")),
    "rare math": frozenset((
        "cosh", "sinh", "asinh", "atan", "acos", "asin", "atanh", "acosh", "i0", "erfc", "erfinv", "digamma", "lgamma",
        "logit", "tan", "expm1", "exp2", "sinc", "angle", "log10", "hypot", "atan2", "logaddexp", "logaddexp2", "xlogy",
        "pow", "entr", "arctan2", "erf",
    )),
    "triangle": frozenset(("tril", "triu")),
    "sliding": frozenset(("unfold", "fold")),
}  # fmt: skip
#: A role -> how often a task is built around it, relative to roles that aren't named.
_IMPORTANCE = {
    "convolution": 9.0, "matrix product": 6.0, "normalization": 4.0, "activation": 4.0, "binary": 2.5,
    "reduction": 2.5, "loss": 2.0, "pooling": 2.0, "scaling": 2.0, "softmax": 1.2, "math": 1.5, "attention": 1.2,
    "indexing": 1.2, "ordering": 0.8, "total": 0.5, "padding": 0.5, "joining": 0.5, "special function": 0.4,
    "recurrent": 0.5, "comparison": 0.3, "rounding": 0.3, "data movement": 0.6, "triangle": 0.5,
    "sliding": 0.2, "scan": 0.8, "resampling": 0.7, "distance": 0.8, "rare math": 0.4,
}  # fmt: skip
#: The same for layers of transformers.
_IMPORTANCE_OF_LAYERS = {
    "attention": 5.0, "feed-forward": 5.0, "transformer block": 4.0, "normalization": 3.0, "experts": 3.0,
    "gated layer": 2.0, "state space": 1.5,
}  # fmt: skip
#: Roles whose time is mostly arithmetic, and the time above which they are preferred.
_HEAVY = frozenset(("convolution", "matrix product", "attention", "recurrent", "distance"))
_SHORT_US = 3000.0
_FOLLOWS: dict[str, dict[str, float]] = {
    "convolution": {
        "normalization": 5, "activation": 6, "pooling": 2.5, "scaling": 1.5, "binary": 1.5, "reduction": 1,
        "convolution": 0.5, "resampling": 1.5, "padding": 0.2, "softmax": 0.3, "data movement": 0.4, "math": 0.2,
        "joining": 0.8, "loss": 0.5, "total": 0.1,
    },
    "matrix product": {
        "activation": 6, "normalization": 3, "scaling": 3, "binary": 2, "reduction": 2, "softmax": 3, "loss": 2,
        "math": 0.5, "matrix product": 0.5, "ordering": 0.8, "triangle": 1, "distance": 0.5, "attention": 0.5,
        "scan": 0.2, "total": 0.3, "recurrent": 0.4, "joining": 0.3, "data movement": 0.3,
    },
    "normalization": {
        "activation": 6, "matrix product": 4, "convolution": 3, "binary": 1.5, "scaling": 1.5, "pooling": 1.5,
        "attention": 1.5, "recurrent": 1, "resampling": 0.5, "softmax": 0.3, "distance": 0.5,
        "padding": 0.2, "reduction": 0.4, "joining": 0.4, "indexing": 0.1, "data movement": 0.3, "loss": 0.2,
    },
    "activation": {
        "binary": 3, "matrix product": 4, "convolution": 3, "pooling": 3, "normalization": 2, "reduction": 2.5,
        "scaling": 1.5, "softmax": 0.1, "loss": 0.4, "resampling": 1, "total": 0.4, "scan": 0.2,
        "padding": 0.4, "data movement": 0.3, "joining": 0.5, "math": 0.1,
    },
    "pooling": {
        "activation": 2.5, "convolution": 4, "normalization": 2.5, "scaling": 0.8, "binary": 0.8,
        "reduction": 0.6, "resampling": 0.3, "joining": 0.5,
    },
    "binary": {
        "activation": 5, "normalization": 5, "reduction": 3, "matrix product": 1.5, "math": 1.5, "binary": 1,
        "convolution": 1, "pooling": 0.6, "softmax": 2.5, "scan": 0.6, "loss": 0.4, "scaling": 1.5, "total": 1,
        "ordering": 0.4, "triangle": 0.3, "rare math": 0.1, "special function": 0.1, "comparison": 0.1, "rounding": 0.1,
    },
    "scaling": {
        "activation": 4, "softmax": 4, "reduction": 2, "binary": 2, "math": 2, "normalization": 0.5, "scaling": 0.7,
        "matrix product": 1, "loss": 0.8, "scan": 0.4, "total": 0.4, "triangle": 0.4, "pooling": 0.3,
        "convolution": 0.6, "rare math": 0.5, "special function": 0.3, "comparison": 0.1, "rounding": 0.2,
    },
    "math": {
        "reduction": 4, "binary": 3, "math": 0.4, "scaling": 2, "scan": 1.5, "total": 1.5, "normalization": 0.5,
        "matrix product": 0.3, "rare math": 0.2, "special function": 0.1,
    },
    "softmax": {
        "matrix product": 4, "binary": 2, "reduction": 0.5, "ordering": 1.5, "loss": 1, "scaling": 0.5, "triangle": 0.3,
        "scan": 0.5, "total": 0.2, "indexing": 0.5, "math": 0.3,
    },
    "scan": {"binary": 2, "reduction": 1, "normalization": 1, "scaling": 2, "math": 1, "activation": 1},
    "reduction": {
        "activation": 2, "math": 2, "scaling": 2, "softmax": 1, "binary": 1, "matrix product": 0.8,
        "normalization": 0.2, "reduction": 0.3, "loss": 0.3, "ordering": 0.3, "convolution": 0,
    },
    "attention": {
        "matrix product": 3, "normalization": 3, "binary": 2, "activation": 0.3, "reduction": 1,
    },
    "recurrent": {"matrix product": 3, "normalization": 2, "activation": 0.2, "reduction": 1.5},
    "indexing": {
        "normalization": 2, "matrix product": 2, "binary": 2, "reduction": 2, "activation": 1, "scaling": 1,
        "attention": 0.5, "recurrent": 0.5, "distance": 0.5, "joining": 0.3,
    },
    "padding": {"convolution": 6, "pooling": 4},
    "resampling": {
        "convolution": 4, "activation": 2, "binary": 2, "normalization": 1, "reduction": 0.3,
        "scaling": 0.5,
    },
    "joining": {
        "matrix product": 3, "convolution": 3, "normalization": 2, "activation": 2, "reduction": 1.5,
    },
    "data movement": {
        "matrix product": 2, "normalization": 2, "binary": 2, "activation": 1, "reduction": 1, "convolution": 1,
        "data movement": 0, "scaling": 0.5,
    },
    "ordering": {"reduction": 2, "scaling": 1, "binary": 0.5, "softmax": 1, "activation": 0.4, "math": 0.4},
    "distance": {"math": 2, "scaling": 3, "reduction": 2, "softmax": 1.5, "ordering": 1, "total": 1},
    "triangle": {"matrix product": 3, "reduction": 2, "scaling": 0.5, "binary": 0.5, "total": 0.5},
    "rare math": {"reduction": 3, "scaling": 2, "binary": 1.5, "math": 0.3, "scan": 0.3, "total": 1},
    "sliding": {"activation": 1, "reduction": 1},
    "special function": {"reduction": 2, "binary": 2, "scaling": 2, "math": 0.3},
    "rounding": {"scaling": 2, "binary": 2, "reduction": 1, "activation": 0.2},
}  # fmt: skip
_COMMON = frozenset((
    "conv1d", "conv2d", "conv3d", "conv_transpose2d", "linear", "matmul", "bmm", "addmm", "einsum", "relu", "gelu",
    "silu", "sigmoid", "tanh", "leaky_relu", "elu", "mish", "hardswish", "softplus", "softmax", "glu",
    "layer_norm", "rms_norm", "batch_norm_1d", "batch_norm_2d", "group_norm", "instance_norm_2d", "add", "sub", "mul",
    "div", "maximum", "where", "sum", "mean", "amax", "max", "logsumexp", "std", "var", "vector_norm", "max_pool2d",
    "avg_pool2d", "adaptive_avg_pool2d", "mul_scalar", "add_scalar", "div_scalar", "bias_add", "channel_bias",
    "channel_scale", "feature_scale", "clamp", "masked_fill", "exp", "log", "sqrt", "abs", "square", "sin", "cos",
    "cross_entropy", "mse_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits", "kl_div", "nll_loss", "cumsum",
    "scaled_dot_product_attention", "embedding", "cat", "topk", "argmax", "cosine_similarity", "cdist", "normalize",
    "gather", "index_select", "scatter_add", "index_add", "upsample_nearest", "upsample_bilinear", "pixel_shuffle",
    "transpose", "permute", "total", "average", "tril",
))  # fmt: skip
_RARE = frozenset((
    "nansum", "nanmean", "nanmedian", "fmax", "fmin", "nextafter", "isclose", "ldexp", "heaviside", "float_power",
    "logical_and", "logical_xor", "signbit", "sgn", "kron", "matrix_power", "renorm", "tanhshrink", "softmin",
    "bucketize", "searchsorted", "isin", "take", "rot90", "fliplr", "flipud", "index_put", "addr", "chain_matmul",
    "i0", "erfc", "digamma", "lgamma", "deg2rad", "rad2deg", "transformer", "transformer_decoder", "addbmm",
    "transformer_encoder", "block_diag", "meshgrid_sum", "conv_tbc", "cross", "diagonal_scatter", "affine_grid", "rsub",
    "multilabel_margin_loss", "triplet_margin_with_distance_loss", "softmax2d", "gradient", "trapezoid", "xlogy",
    "slice_scatter", "select_scatter",
    "cumulative_trapezoid", "reverse_cumsum", "frac", "msort", "nan_to_num", "logaddexp2", "copysign", "atan2",
))  # fmt: skip
#: Operators that make no task: they compute nothing, give the same for all long rows (a product of many numbers is 0),
#: or equal another operator on real numbers without NaN.
_IDLE = frozenset((
    "nansum", "nanmean", "nanmedian", "fmax", "fmin", "angle",
    "clone", "contiguous", "positive", "identity", "zeros_like", "ones_like", "detach", "any", "all", "prod", "cumprod",
))  # fmt: skip
_CLASSIFYING = frozenset((
    "cross_entropy", "nll_loss", "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss",
    "kl_div",
))  # fmt: skip
_OF_LOGITS = frozenset(("binary_cross_entropy_with_logits", "soft_margin_loss", "multilabel_soft_margin_loss"))
_METRIC = frozenset((
    "triplet_margin_loss", "triplet_margin_with_distance_loss", "cosine_embedding_loss", "margin_ranking_loss",
    "hinge_embedding_loss",
))  # fmt: skip
#: Operators that scores and embeddings come from.
_SCORING = frozenset((
    "linear", "bilinear", "matmul", "mm", "addmm", "log_softmax", "div_scalar", "mul_scalar", "bias_add",
))  # fmt: skip
_EMBEDDING = frozenset(("linear", "normalize", "layer_norm", "tanh", "embedding_bag", "batch_norm_1d"))
#: Roles whose output a gated linear unit splits in two.
_GATED = frozenset(("matrix product", "normalization", "indexing", "joining"))
#: Roles that nothing follows, because their outputs are few numbers, truth values or several tensors.
_LAST = frozenset(("loss", "total", "comparison"))

#: The values that operators make; operators that aren't named make `normal`.
_MAKES = {
    "softmax": "probabilities", "softmin": "probabilities", "softmax2d": "probabilities", "sigmoid": "probabilities",
    "log_softmax": "log_probabilities", "exp": "positive", "exp2": "positive", "softplus": "positive",
    "cosh": "positive", "i0": "positive", "erfc": "positive", "var": "positive", "std": "positive",
    "vector_norm": "positive", "norm": "positive", "cdist": "positive", "pairwise_distance": "positive",
    "relu": "zero or more", "relu6": "zero or more", "abs": "zero or more", "square": "zero or more",
    "clamp_min": "normal", "hardsigmoid": "zero or more", "hypot": "positive", "ndtr": "probabilities",
}  # fmt: skip
_ACCEPTS = {
    "normal": frozenset(("normal", "uniform", "positive", "probabilities", "log_probabilities", "zero or more")),
    "uniform": frozenset(("probabilities", "uniform")),
    "positive": frozenset(("positive", "probabilities")),
    "probabilities": frozenset(("probabilities",)),
    "log_probabilities": frozenset(("log_probabilities",)),
}
#: Operators that accept zeros, although their own inputs are drawn above zero.
_TAKES_ZERO = frozenset(("sqrt", "log1p", "lp_pool1d", "lp_pool2d", "lp_pool3d", "entr", "acosh"))
_KEEPING = frozenset(("pooling", "padding", "resampling", "joining", "data movement"))
_POSITIVE = frozenset(("probabilities", "positive", "zero or more"))
_PLAIN_ON_POSITIVE = frozenset((
    "relu", "abs", "leaky_relu", "prelu", "elu", "celu", "selu", "sign", "sgn", "clamp_min", "threshold", "copysign",
    "heaviside_scalar", "signbit", "nan_to_num", "count_nonzero", "l1_loss", "clamp", "hardtanh", "softshrink",
    "hardshrink",
))  # fmt: skip
#: Operators whose result is close to zero on many positive numbers.
_LEAST = frozenset(("amin", "min", "cummin"))
#: Operators that jump where their input differs in its last bit. After a rounded result, a faster program has other
#: outputs.
_STEPPED = frozenset((
    "ceil", "floor", "round", "trunc", "sign", "sgn", "frac", "heaviside", "heaviside_scalar", "remainder_scalar",
    "remainder", "fmod", "floor_divide", "nextafter", "argmax", "argmin", "argsort", "gt", "ge", "lt", "le",
    "logical_and", "logical_xor", "isclose", "signbit", "bucketize", "searchsorted", "isin", "any", "all",
    "count_nonzero",
))  # fmt: skip
#: Roles and operators whose result is the same to the last bit in any program.
_EXACT_ROLES = frozenset(("data movement", "padding", "joining", "indexing", "triangle", "sliding", "rounding"))
_EXACT = frozenset((
    "relu", "relu6", "hardtanh", "clamp", "clamp_min", "clamp_max", "neg", "abs", "masked_fill", "maximum", "minimum",
    "where", "amax", "amin", "max", "min", "cummax", "cummin", "sort", "pixel_shuffle", "pixel_unshuffle", "add", "sub",
    "mul", "max_pool1d", "max_pool2d", "max_pool3d", "add_scalar", "bias_add", "channel_bias", "feature_scale",
    "channel_scale", "embedding", "gather", "index_select", "fmax", "fmin", "square", "adaptive_max_pool2d",
))  # fmt: skip
_SUMMING = frozenset(("embedding_bag", "scatter_add", "index_add", "scatter_reduce", "index_reduce", "fold"))
#: A product of unscaled numbers, whose results are as large as those of a power.
_OWN_PRODUCT = "product with its own transpose"
#: Joins that may be inside a chain; other joins only begin one.
_JOINS = frozenset(("cat", "stack"))
#: Ordering and indexing operators that may follow a softmax.
_AFTER_SHARES = frozenset(("topk", "argmax", "sort", "gather", "take_along_dim", "log", "square", "sqrt"))


@cache
def _role(family: str, operator: str, ports: int) -> str:
    for name, operators in _ROLES.items():
        if operator in operators:
            return name
    if "_pad_" in operator or operator == "pad":
        return "padding"
    if family == "pointwise":
        return "binary" if ports > 1 else "math"
    return family


def role(seed: Seed) -> str:
    """Returns the role of the seed in a chain, which is finer than its family."""
    return _role(seed.family, seed.operator, len(seed.ports))


def importance(seed: Seed) -> float:
    """Returns how often a task is built around the seed's role, relative to roles that aren't named."""
    return (_IMPORTANCE if seed.library == "torch" else _IMPORTANCE_OF_LAYERS).get(role(seed), 1.0)


def suits_time(name: str, wanted_us: float) -> float:
    """Returns how well a task of this time is built around this role. Long tasks are built around arithmetic, because
    an operator that only moves memory would need too much of it."""
    longer = max(0.0, math.log(wanted_us / _SHORT_US))
    return 1.0 + longer if name in _HEAVY else 1.0 / (1.0 + longer)


def commonness(seed: Seed) -> float:
    """Returns how common the operator is, relative to one that is neither common nor rare."""
    if seed.operator in _COMMON:
        return 4.0
    if seed.operator in _IDLE:
        return 0.0
    if seed.operator in _RARE or seed.family == "special function":
        return 0.25
    return 0.4 if seed.operator.endswith(("3d", "_3d")) else 1.0


def domain(seeds: Sequence[Seed]) -> str:
    """Returns the kind of data in a chain: `image` (of two or three dimensions), `signal` (or with `time first`),
    `heads` of attention, or `rows` of features."""
    names = {name for seed in seeds for name in names_of(seed.ports[0].layout)}
    if any(seed.ports[0].layout.startswith("L ") for seed in seeds):
        return "time first"
    return "image" if {"H", "W"} <= names else "signal" if {"C", "L"} <= names else "heads" if "G" in names else "rows"


def suits(seed: Seed, flowing: str) -> float:
    """Returns how well an operator suits a kind of data. An operator on rows, steps or matrices doesn't suit images or
    signals, nor does one along a dimension or on the last dimension alone. A transposition makes a signal of a
    sequence."""
    own, layout = domain((seed,)), seed.ports[0].layout
    if own != "rows":
        return 1.0 if flowing in ("rows", own) else 0.0
    if flowing in ("rows", "heads") or layout == "*" or seed.operator == "transpose":
        return 1.0
    if role(seed) == "scan":
        return 0.0
    if layout.startswith("* ") and any(item.name == "dim" and "1" in item.choices for item in seed.parameters):
        return 1.0
    return 0.1 if layout.startswith("* ") and role(seed) == "data movement" else 0.0


def affinity(before: Seed, after: Seed) -> float:
    """Returns how natural it is that `after` follows `before`; 0 means never."""
    if before.library != "torch" or after.library != "torch" or after.ports[0].dtype != "float32":
        return 0.0
    first, second = role(before), role(after)
    if first in _LAST or (before.operator == after.operator and first not in ("matrix product", "convolution")):
        return 0.0
    made = "matrix_power" if before.name == _OWN_PRODUCT else before.operator
    if pointless(made, after.operator) or not _fits(before, after):
        return 0.0
    if _needs_another(before, first, after, second):
        return 0.0
    return _FOLLOWS.get(first, {}).get(second, 0.0)


def _needs_another(before: Seed, first: str, after: Seed, second: str) -> bool:
    """Returns whether `after` only follows other operators than `before`."""
    name = after.operator
    if name in _OF_LOGITS:
        return first not in ("matrix product", "convolution", "scaling", "normalization")
    if name in _CLASSIFYING:
        return before.operator not in _SCORING
    if name in _METRIC:
        return before.operator not in _EMBEDDING
    if name == "linear_cross_entropy":
        return first not in ("normalization", "activation", "indexing")
    if name in _STEPPED and not _is_exact(before):
        return True
    return (
        (name == "glu" and first not in _GATED)
        or (first == "padding" and second == "convolution" and not pads(after))
        or (second == "joining" and name not in _JOINS)
        or (first == "softmax" and second in ("ordering", "indexing", "math") and name not in _AFTER_SHARES)
        or (second == "recurrent" and first == "matrix product" and before.operator != "linear")
        or (before.operator in ("kron", "block_diag") and len(after.ports) > 1)
        or (first in ("special function", "rare math") and name in EXTREMES)
    )


def pads(seed: Seed) -> bool:
    """Returns whether a convolution's padding can be chosen."""
    is_used = "{padding}" in (seed.constructor or "") + seed.call
    return is_used and any(item.name == "padding" and len(item.choices) > 1 for item in seed.parameters)


def _is_exact(seed: Seed) -> bool:
    """Returns whether any program gives the same result to the last bit."""
    return seed.operator in _EXACT or (role(seed) in _EXACT_ROLES and seed.operator not in _SUMMING)


def made_by(seed: Seed) -> str:
    """Returns the kind of values in the seed's output."""
    if role(seed) in _KEEPING:
        return seed.ports[0].values
    return _MAKES.get(seed.operator, "normal")


def _fits(before: Seed, after: Seed) -> bool:
    made, wanted = made_by(before), after.ports[0].values
    if made in _POSITIVE and after.operator in _PLAIN_ON_POSITIVE | _LEAST:
        return False
    if made == "zero or more" and wanted == "positive":
        return after.operator in _TAKES_ZERO
    return made in _ACCEPTS.get(wanted, frozenset())
