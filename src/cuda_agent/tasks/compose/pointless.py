"""Pairs of operators of which the second undoes, ignores or saturates the result of the first."""

from __future__ import annotations

_AVERAGING = frozenset((
    "mean", "sum", "var", "std", "nanmean", "nansum", "std_mean", "var_mean", "average", "total",
))  # fmt: skip
_POOLED = frozenset(("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"))
_REDUCING = _AVERAGING | {
    "amax", "amin", "max", "min", "prod", "logsumexp", "norm", "vector_norm", "topk", "kthvalue", "median", "quantile",
}  # fmt: skip
_NORMS = frozenset((
    "layer_norm", "group_norm", "instance_norm_1d", "instance_norm_2d", "instance_norm_3d", "batch_norm_1d",
    "batch_norm_2d", "batch_norm_3d",
))  # fmt: skip
_SOFTMAX = frozenset(("softmax", "softmin", "softmax2d", "log_softmax"))
#: Operators whose result doesn't change when a number is added, or when a positive number is multiplied.
_SHIFT_FREE = _NORMS | _SOFTMAX | {"var", "std", "var_mean", "diff", "gradient", "cov", "corrcoef", "cross_entropy"}
_SCALE_FREE = _NORMS | {"rms_norm", "normalize", "cosine_similarity", "corrcoef"}
#: Operators that grow too fast for large numbers.
_GROWING = frozenset((
    "exp", "exp2", "expm1", "sinh", "cosh", "i0", "i1", "pow", "float_power", "pow_scalar", "prod", "cumprod", "square",
))  # fmt: skip
_BOUNDS = frozenset(("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6"))
_SHRINKS = frozenset(("softshrink", "hardshrink", "tanhshrink", "threshold"))
#: Operators that are constant, or nearly, on large numbers.
_SATURATING = _BOUNDS | _SHRINKS | {
    "sigmoid", "tanh", "hardsigmoid", "softsign", "erf", "erfc", "atan", "ndtr", "logsigmoid", "softmax", "softmin",
    "softmax2d",
}  # fmt: skip
#: Operators whose results are at most one, so that the largest of many is one.
_BOUNDED = frozenset(("sigmoid", "hardsigmoid", "tanh", "softsign", "erf", "ndtr", "sin", "cos"))
EXTREMES = frozenset(("amax", "amin", "max", "min", "topk", "kthvalue", "logsumexp"))
#: Operators that are the identity, or a constant, on numbers near zero.
_FLAT_AT_ZERO = _SOFTMAX | {
    "sigmoid", "tanh", "hardsigmoid", "softsign", "erf", "erfc", "atan", "ndtr", "logsigmoid", "softplus", "exp",
    "exp2", "expm1", "cos", "cosh", "sin", "sinh", "sinc", "i0",
}  # fmt: skip
#: Operators that are the identity, or nearly, on numbers well above zero.
_LINEAR_ABOVE = frozenset((
    "relu", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "mish", "hardswish", "softplus", "abs", "prelu",
))  # fmt: skip
#: Operators that make numbers of ten and more from numbers around one.
_LARGE = frozenset((
    "sum", "nansum", "cumsum", "reverse_cumsum", "trapezoid", "cumulative_trapezoid", "norm", "vector_norm",
    "matrix_norm", "cdist", "pairwise_distance", "vecdot", "matrix_power", "chain_matmul", "addbmm", "fold",
)) | (_GROWING - {"prod", "cumprod"})  # fmt: skip
#: Operators whose results are within about one of zero.
_SMALL = _SOFTMAX - {"log_softmax"} | {
    "sigmoid", "hardsigmoid", "tanh", "softsign", "erf", "ndtr", "sin", "cos", "cosine_similarity", "normalize", "sinc",
}  # fmt: skip
_PRODUCTS = frozenset((
    "linear", "bilinear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "inner", "tensordot",
    "einsum", "chain_matmul", "matrix_power",
))  # fmt: skip
_EVEN = frozenset(("abs", "square", "cos", "cosh", "norm", "vector_norm", "pow_scalar"))
#: An operator -> the operators that may not follow it.
_POINTLESS: dict[str, frozenset[str]] = {
    "layer_norm": _AVERAGING,
    "softmax": _AVERAGING - {"var", "std", "std_mean", "var_mean"} | {"cross_entropy", "l1_loss", "log"},
    "log_softmax": _PRODUCTS | {"cross_entropy", "logsumexp"},
    "normalize": frozenset(("norm", "vector_norm", "rms_norm", "renorm")) | _FLAT_AT_ZERO,
    "cumsum": frozenset(("diff", "reverse_cumsum")),
    "exp": _GROWING | {"log", "logsumexp"},
    "log": _GROWING,
    "sqrt": frozenset(("square", "pow_scalar")),
    "square": frozenset(("sqrt", "norm", "vector_norm", *_EVEN)),
    "neg": _EVEN,
    "abs": _EVEN,
    "add_scalar": _SHIFT_FREE,
    "mul_scalar": _SCALE_FREE,
    "div_scalar": _SCALE_FREE,
    "channel_bias": _NORMS - {"layer_norm", "group_norm"},
    "channel_scale": _NORMS - {"layer_norm", "group_norm"},
    "amax": _SATURATING | _LINEAR_ABOVE,
    "std": _SATURATING | _LINEAR_ABOVE,
    "logsumexp": _SATURATING | _LINEAR_ABOVE | _GROWING,
    "cosine_similarity": frozenset(("add_scalar", "square", "pow_scalar", "mean", "average")),
    "nan_to_num": frozenset(("nansum", "nanmean", "nanmedian")),
    "diag_embed": _PRODUCTS,
    "sort": _REDUCING,
    "flip": _REDUCING,
    "repeat": frozenset(("amax", "amin", "max", "min", "mean", "average", "sum", "total")),
    "clamp": _BOUNDS | {"sign", "sgn", "signbit"},
    "cummax": _SATURATING | _LINEAR_ABOVE | {"max", "amax", "argmax", "topk"},
    "cummin": frozenset(("min", "amin", "argmin")),
}
_ALIKE = {
    "instance_norm_1d": "layer_norm", "instance_norm_2d": "layer_norm", "instance_norm_3d": "layer_norm",
    "softmin": "softmax", "softmax2d": "softmax", "exp2": "exp", "expm1": "exp", "cosh": "exp", "sinh": "exp",
    "i0": "exp", "max": "amax", "topk": "amax", "var": "std", "roll": "flip", "fliplr": "flip",
    "flipud": "flip", "rot90": "flip", "channel_shuffle": "flip", "msort": "sort", "tile": "repeat",
    "repeat_interleave": "repeat",
    "upsample_nearest": "repeat", "hardtanh": "clamp", "relu6": "clamp", "clamp_min": "clamp", "clamp_max": "clamp",
    "log2": "log", "log10": "log", "log1p": "log", "cumulative_trapezoid": "cumsum",
}  # fmt: skip


def pointless(before: str, after: str) -> bool:
    """Returns whether the operator `after` makes no sense on the result of `before`."""
    if after in _POINTLESS.get(_ALIKE.get(before, before), ()):
        return True
    if before in _LARGE and (after in _GROWING or after in _SATURATING):
        return True
    if before in _BOUNDED and after in EXTREMES:
        return True
    if before.startswith("instance_norm") and after in _POOLED:
        return True
    return before in _SMALL and after in (_BOUNDS | _SHRINKS)
