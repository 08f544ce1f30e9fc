"""The reference as a graph of ATen operators with shapes: plain data, safe to pass from an untrusted worker."""

import math
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Literal, TypeVar

from pydantic import Field
from typing_extensions import TypeAliasType

from cuda_agent.core.record import Record, StoredRecord


class TensorMeta(Record):
    """Shape and strides in elements; the dtype has torch's name without the prefix (`float32`, `bfloat16`, `int64`)."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class Ref(Record):
    """A use of a graph value by name."""

    ref: str


class DtypeArg(Record):
    dtype: str


class NonFinite(Record):
    """A float that JSON can't represent."""

    nonfinite: Literal["inf", "-inf", "nan"]


#: Operators that fill a tensor from the state of torch's generator and read no values. A caller with the same state
#: draws the same numbers.
DRAWS = frozenset({
    "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "normal", "normal_", "normal_functional",
    "uniform", "uniform_",
})  # fmt: skip

#: Operators whose result depends on a generator's state. Those outside `DRAWS` also read values.
RANDOM = DRAWS | frozenset({
    "randperm", "bernoulli", "bernoulli_", "multinomial", "native_dropout", "dropout", "feature_dropout", "random_",
    "alpha_dropout", "rrelu_with_noise", "rrelu_with_noise_functional", "exponential", "exponential_", "geometric",
    "geometric_", "cauchy", "cauchy_", "log_normal", "log_normal_", "poisson", "binomial", "fractional_max_pool2d",
    "fractional_max_pool3d", "feature_alpha_dropout", "rrelu_with_noise_",
})  # fmt: skip


def base_name(op: str) -> str:
    """Returns an operator's name without namespace and overload: `sum` for `aten.sum.dim_IntList`."""
    parts = op.split(".")
    return parts[1] if len(parts) > 2 else parts[-1]


Arg = TypeAliasType("Arg", "bool | int | float | str | Ref | DtypeArg | NonFinite | list[Arg] | None")


Item = TypeVar("Item", str, int)


def reached(starts: Iterable[Item], following: Callable[[Item], Iterable[Item]]) -> tuple[Item, ...]:
    """Returns the starts and everything that follows from them, each once, in depth-first order."""
    found: dict[Item, None] = {}
    stack = list(starts)
    while stack:
        item = stack.pop()
        if item not in found:
            found[item] = None
            stack += following(item)
    return tuple(found)


def refs(arguments: Iterable[Arg]) -> list[str]:
    """Returns the names of the values that arguments use, in order."""
    found = []
    for argument in arguments:
        if isinstance(argument, Ref):
            found.append(argument.ref)
        elif isinstance(argument, list):
            found += refs(argument)
    return found


class ValueKind(StrEnum):
    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"
    #: random numbers that `forward` draws itself.
    DRAWN = "drawn"


class GraphInput(Record):
    """A value from outside: an input of `forward` (flattened position), a weight by its name in the state dict, or a
    small constant with its values inline (flattened, row-major)."""

    name: str
    kind: ValueKind
    meta: TensorMeta
    position: int | None = None
    target: str | None = None
    values: tuple[float, ...] | None = None


class Node(Record):
    """One operator call. `op` is its full name, such as `aten.gelu.default`; `getitem` picks one of several outputs.
    `outputs` has one meta for a tensor result and several for a tuple (an entry is None for a value that is no
    tensor). `line` is the task's line that calls it, such as `12: return torch.relu(x)`."""

    name: str
    op: str
    args: tuple[Arg, ...] = ()
    kwargs: dict[str, Arg] = Field(default_factory=dict)
    outputs: tuple[TensorMeta | None, ...]
    line: str = ""

    def argument(self, index: int, name: str, default: Arg = None) -> Arg:
        """Returns the argument, given by position or by keyword."""
        return self.args[index] if index < len(self.args) else self.kwargs.get(name, default)


def spec_text(
    spec: dict[str, Any], name: str = "", parameter: Callable[[int, str], str] = lambda index, name: name
) -> str:
    """Returns a nesting (`Graph.output_spec`, `workers.inside.task.pytree`) as Python text. `parameter` names tensor
    `index`, which stands at `name`. Raises ValueError for a form that has no text."""
    if "t" in spec:
        return parameter(spec["t"], name)
    if "v" in spec:
        return repr(spec["v"])
    if "f" in spec:
        return f"float({spec['f']!r})"
    if "dtype" in spec:
        return f"torch.{spec['dtype']}"
    if "dict" in spec:
        return f"{{{', '.join(f'{key!r}: {spec_text(item, key, parameter)}' for key, item in spec['dict'].items())}}}"
    if "list" not in spec and "tuple" not in spec:
        raise ValueError(spec)
    inner = spec["list"] if "list" in spec else spec["tuple"]
    items = [spec_text(item, f"{name}_{index}", parameter) for index, item in enumerate(inner)]
    text = ", ".join(items)
    return f"[{text}]" if "list" in spec else f"({text}{',' if len(items) == 1 else ''})"


class Graph(StoredRecord):
    """`forward` in eval mode, in topological order. `outputs` are names of values; `output_spec` is their nesting as
    JSON (a leaf is {"t": index into outputs}; list, tuple and dict nest as {"list": […]}, {"tuple": […]}, {"dict":
    {…}})."""

    file_name = "graph.json"
    inputs: tuple[GraphInput, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    output_spec: str = '{"t": 0}'
    #: `ModelNew.__init__`'s parameter list as source, such as `(self, hidden, eps=1e-06)`.
    init_signature: str = "(self, *args, **kwargs)"
    #: `forward`'s parameter names in order, without `self`.
    forward_parameters: tuple[str, ...] = ()
    #: The defaults of `forward`'s parameters as source; keyword-only parameters are here only.
    forward_defaults: dict[str, str] = Field(default_factory=dict)
    #: Parameters of `forward` without tensors -> the value as source that the graph was captured with.
    fixed: dict[str, str] = Field(default_factory=dict)
    #: All names in the state dict (parameters and persistent buffers), used in the graph or not.
    state: dict[str, TensorMeta] = Field(default_factory=dict)
    state_parameters: tuple[str, ...] = ()
