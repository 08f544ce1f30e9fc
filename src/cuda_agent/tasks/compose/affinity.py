"""Which operator a person would write after which, and what values each makes.

Weights by family; a pair that isn't named gets `_SELDOM`. What would be pointless whatever its family (a sum of
probabilities, an activation of an activation) is refused by operator.
"""

from __future__ import annotations

from cuda_agent.tasks.records import Seed

#: how often a family is the one that a task is built around.
_IMPORTANCE = {
    "convolution": 3.0, "matrix product": 3.0, "normalization": 2.5, "activation": 2.5, "pointwise": 2.0,
    "reduction": 2.0, "loss": 1.5, "pooling": 1.5, "attention": 1.5,
}  # fmt: skip
_SELDOM = 0.3
_FOLLOWS: dict[str, dict[str, float]] = {
    "convolution": {
        "normalization": 4, "activation": 5, "pooling": 2, "pointwise": 1.5, "reduction": 0.8, "convolution": 0.6,
        "shape": 1, "math": 0.5, "upsampling": 1, "loss": 0.3,
    },
    "matrix product": {
        "activation": 5, "normalization": 3, "pointwise": 2, "reduction": 1.5, "softmax": 2, "math": 1, "loss": 1,
        "scan": 0.4, "matrix product": 0.6, "selection": 0.6, "sorting": 0.4,
    },
    "normalization": {
        "activation": 5, "matrix product": 3, "convolution": 2, "pointwise": 2, "pooling": 1, "attention": 1,
        "normalization": 0, "softmax": 0.5, "upsampling": 0.4,
    },
    "activation": {
        "pointwise": 3, "matrix product": 3, "convolution": 2, "pooling": 2, "normalization": 2, "reduction": 2,
        "activation": 0, "softmax": 0.2, "loss": 0.4, "upsampling": 0.5, "scan": 0.3,
    },
    "pooling": {
        "activation": 2, "convolution": 3, "normalization": 2, "pointwise": 1, "reduction": 1, "pooling": 0,
        "math": 0.3,
    },
    "pointwise": {
        "activation": 4, "normalization": 4, "reduction": 2.5, "matrix product": 1.5, "math": 1.5, "pointwise": 1,
        "convolution": 1, "pooling": 1, "softmax": 2, "scan": 0.6, "loss": 0.6,
    },
    "math": {"reduction": 3, "pointwise": 3, "math": 0.5, "normalization": 1, "scan": 1, "activation": 0.6},
    "softmax": {"matrix product": 3, "pointwise": 2, "reduction": 0.3, "softmax": 0, "activation": 0, "loss": 0.5},
    "scan": {"pointwise": 2, "reduction": 1, "normalization": 1, "activation": 1, "math": 1, "scan": 0},
    "reduction": {
        "activation": 2, "math": 1.5, "softmax": 1, "pointwise": 0.8, "matrix product": 0.8, "normalization": 0.5,
        "reduction": 0.2, "loss": 0.2,
    },
    "attention": {"matrix product": 3, "normalization": 2, "pointwise": 2, "activation": 0.5, "attention": 0},
}  # fmt: skip

_SOFTMAX = frozenset(("softmax", "softmin", "log_softmax", "softmax2d", "gumbel_softmax"))
#: values of what these make; every other operator makes `normal`, and what keeps the values it got is in `_KEEPS`.
_MAKES = {
    "softmax": "probabilities", "softmin": "probabilities", "softmax2d": "probabilities", "sigmoid": "probabilities",
    "hardsigmoid": "probabilities", "log_softmax": "log_probabilities", "logsigmoid": "log_probabilities",
    "exp": "positive", "exp2": "positive", "relu": "positive", "relu6": "positive", "softplus": "positive",
    "abs": "positive", "square": "positive", "logcumsumexp": "normal", "norm": "positive", "var": "positive",
    "std": "positive",
}  # fmt: skip
_ACCEPTS = {
    "normal": {"normal", "uniform", "positive", "probabilities", "log_probabilities"},
    "uniform": {"probabilities", "uniform"},
    "positive": {"positive", "probabilities", "uniform"},
    "probabilities": {"probabilities"},
    "log_probabilities": {"log_probabilities"},
}
_KEEPING = frozenset(("pooling", "shape", "upsampling", "indexing", "selection"))
#: constant or redundant whatever comes in: by the operator (or the family) before, then after.
_POINTLESS = frozenset((
    ("layer_norm", "mean"), ("layer_norm", "sum"), ("layer_norm", "var"), ("layer_norm", "std"), ("softmax", "sum"),
    ("softmax", "mean"), ("softmin", "sum"), ("softmin", "mean"), ("softmax2d", "sum"), ("softmax2d", "mean"),
    ("rms_norm", "layer_norm"), ("sigmoid", "relu"), ("square", "abs"), ("exp", "abs"), ("cumsum", "diff"),
))  # fmt: skip


def group(seed: Seed) -> str:
    """The seed's family, with the softmaxes apart from the other activations."""
    return "softmax" if seed.operator in _SOFTMAX else seed.family


def importance(family: str) -> float:
    """How often a task is built around this family, relative to one that isn't named."""
    return _IMPORTANCE.get(family, 1.0)


def affinity(before: Seed, after: Seed) -> float:
    """How readily `after` follows `before`; 0 where nobody would write it."""
    if before.family == "loss" or before.library != "torch" or after.library != "torch":
        return 0.0
    if before.operator == after.operator and group(before) not in ("matrix product", "convolution"):
        return 0.0
    if (before.operator, after.operator) in _POINTLESS or not _fits(before, after):
        return 0.0
    return _FOLLOWS.get(group(before), {}).get(group(after), _SELDOM)


def made_by(seed: Seed) -> str:
    """What its output holds."""
    if seed.family in _KEEPING:
        return seed.ports[0].values
    return _MAKES.get(seed.operator, "normal")


def _fits(before: Seed, after: Seed) -> bool:
    wanted = after.ports[0].values
    return made_by(before) in _ACCEPTS.get(wanted, set())
