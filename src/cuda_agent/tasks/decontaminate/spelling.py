"""Maps all spellings of an operator to one word: `nn.LogSoftmax`, `F.log_softmax`, `torch.log_softmax` and
`x.log_softmax` are all `logsoftmax`."""

from __future__ import annotations

import re

_ALIASES = {
    "absolute": "abs", "negative": "neg", "clip": "clamp", "clampmin": "clamp", "clampmax": "clamp", "truediv": "div",
    "truedivide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "rsub": "sub", "power": "pow",
    "floatpower": "pow", "square": "pow", "expit": "sigmoid", "mm": "matmul", "bmm": "matmul", "mv": "matmul",
    "dot": "matmul", "inner": "matmul", "transpose": "permute", "t": "permute", "swapaxes": "permute",
    "swapdims": "permute", "movedim": "permute", "moveaxis": "permute", "adjoint": "permute", "mt": "permute",
    "h": "permute", "view": "reshape", "viewas": "reshape", "reshapeas": "reshape", "flatten": "reshape",
    "unflatten": "reshape", "ravel": "reshape", "concat": "cat", "concatenate": "cat", "greater": "gt",
    "greaterequal": "ge", "less": "lt", "lessequal": "le", "notequal": "ne", "softmax2d": "softmax",
    "bce": "binarycrossentropy", "bcewithlogits": "binarycrossentropywithlogits", "nll2d": "nll",
    "upsample": "interpolate", "upsamplingnearest2d": "interpolate", "upsamplingbilinear2d": "interpolate",
    "expandas": "expand", "repeatinterleave": "repeat", "tile": "repeat", "narrow": "item", "select": "item",
    "indexselect": "item", "getitem": "item", "splitwithsizes": "split", "chunk": "split", "tensorsplit": "split",
    "amax": "max", "amin": "min", "sdpa": "scaleddotproductattention",
}  # fmt: skip

#: Operators with one name for all dimensions in their functional form.
_DIMENSION = re.compile(
    r"^(batchnorm|instancenorm|syncbatchnorm|zeropad|constantpad|reflectionpad|replicationpad|circularpad)\dd$"
)
_PAD = ("zeropad", "constantpad", "reflectionpad", "replicationpad", "circularpad")

#: Operators that return a view of a tensor, or the tensor itself in eval mode.
PASSES = frozenset((
    "contiguous", "clone", "detach", "to", "float", "half", "bfloat16", "double", "type", "typeas", "dropout",
    "dropout1d", "dropout2d", "dropout3d", "alphadropout", "featurealphadropout", "identity", "requiresgrad", "cuda",
    "cpu", "unsqueeze", "squeeze", "expand", "parameter", "buffer", "checkpoint",
))  # fmt: skip

#: Operators whose further tensors are weights, which a module owns and a function takes.
WEIGHTED = frozenset((
    "linear", "conv1d", "conv2d", "conv3d", "convtranspose1d", "convtranspose2d", "convtranspose3d", "batchnorm",
    "instancenorm", "layernorm", "groupnorm", "rmsnorm", "prelu", "embedding",
))  # fmt: skip

#: Further modules with weights.
STATEFUL = WEIGHTED | frozenset((
    "bilinear", "lstm", "gru", "rnn", "lstmcell", "grucell", "rnncell", "multiheadattention", "embeddingbag",
    "transformer", "transformerencoder", "transformerencoderlayer", "transformerdecoder", "transformerdecoderlayer",
    "adaptivelogsoftmaxwith",
))  # fmt: skip

#: Operators for which a number counts as an operand.
ARITHMETIC = frozenset((
    "add", "sub", "mul", "div", "matmul", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "fmod",
    "remainder", "floordivide",
))  # fmt: skip

#: Operators that make tensors without inputs.
SOURCES = frozenset((
    "zeros", "ones", "full", "empty", "arange", "linspace", "logspace", "eye", "tensor", "astensor", "rand", "randn",
    "randint", "randperm", "fromnumpy", "zeroslike", "oneslike", "fulllike", "emptylike", "randlike", "randnlike",
))  # fmt: skip

OPERATORS = {
    "Add": "add", "Sub": "sub", "Mult": "mul", "Div": "div", "Pow": "pow", "MatMult": "matmul", "Mod": "remainder",
    "FloorDiv": "floordivide", "BitAnd": "bitwiseand", "BitOr": "bitwiseor", "BitXor": "bitwisexor",
    "LShift": "shift", "RShift": "shift", "Eq": "eq", "NotEq": "ne", "Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge",
    "USub": "neg", "Invert": "bitwisenot", "Not": "logicalnot", "And": "logicaland", "Or": "logicalor",
}  # fmt: skip


def canonical(name: str) -> str:
    """Returns the word of a dotted name: `torch.nn.functional.max_pool2d` and `torch.nn.MaxPool2d` -> `maxpool2d`."""
    parts = name.split(".")
    if "aten" in parts[:-1]:
        parts = parts[: parts.index("aten") + 2]
    word = parts[-1].lower().replace("_", "")
    word = word.removeprefix("lazy")
    word = word.removesuffix("loss") or word
    dimension = _DIMENSION.match(word)
    if dimension:
        word = dimension.group(1)
    return "pad" if word in _PAD else _ALIASES.get(word, word)
