"""Fits the cost of a layer as a formula to its operators on meta tensors at two lengths."""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from cuda_agent.tasks.crawl.binding import Binding, bindings
from cuda_agent.tasks.crawl.trial import Unfit, scope_of, tensors
from cuda_agent.tasks.records import Seed

_EACH, _DRAW = "for weight in {layer}.parameters():", "    nn.init.normal_(weight, std=0.02)"
_MATRICES, _ALL = (_EACH, "    if weight.dim() > 1:", f"    {_DRAW}"), (_EACH, _DRAW)
_NN = "from torch import nn"


class _Traffic(TorchDispatchMode):  # type: ignore[misc]
    """Counts the elements that kernels read and write, and those that they write. Views move none."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = self.written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        alias = [item.alias_info for item in func._schema.returns]
        if not any(item is not None and not item.is_write for item in alias):
            written = sum(item.numel() for item in tensors(made))
            self.written += written
            self.moved += written + sum(item.numel() for item in tensors((args, kwargs)))
        return made


def _element(made: Any, family: str) -> str:
    """Returns the index into an output of several values: none for a rotary embedding or a router, else the first."""
    if isinstance(made, torch.Tensor):
        return ""
    if not isinstance(made, list | tuple) or not made:
        raise Unfit(f"its output is no tensor but {type(made).__name__}")
    if family in ("rotary embedding", "experts") and all(isinstance(item, torch.Tensor) for item in made):
        return ""
    if not isinstance(made[0], torch.Tensor):
        raise Unfit("the first of its outputs is no tensor")
    return "[0]"


def _unset(layer: nn.Module) -> list[torch.Tensor]:
    """Returns weights without values, which PyTorch fills with NaN in deterministic mode, and matrices of zeros."""
    return [
        item
        for item in layer.parameters()
        if item.is_floating_point() and (bool(item.isnan().any()) or (item.dim() > 1 and not item.any()))
    ]


def made_with_marks(make: Any) -> Any:
    """Returns the layer, with NaN in the weights that its constructor leaves unset."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return make()
    finally:
        torch.use_deterministic_algorithms(before)


def measure(binding: Binding, scope: dict[str, Any]) -> dict[str, float]:
    """Returns the FLOPs and elements of one pass on meta tensors. Raises what the library raises."""
    with torch.device("meta"), torch.no_grad():
        layer, inputs = binding.layer(scope), binding.inputs("meta")
        with FlopCounterMode(display=False) as counter, _Traffic() as traffic:
            made = binding.call(scope, layer, inputs)
    return {
        "flops": counter.get_total_flops(),
        "moved": traffic.moved,
        "written": traffic.written,
        "inputs": sum(item.numel() for item in inputs.values()),
        "outputs": sum(item.numel() for item in tensors(made)),
        "weights": 0 if layer is None else sum(item.numel() for item in layer.parameters()),
    }


def _first(seed: Seed, small: Mapping[str, int]) -> Binding:
    return next(bindings(seed, small, ()))


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else str(round(value))


def _formulas(seed: Seed, scope: dict[str, Any], small: dict[str, int]) -> tuple[str, str]:
    """Returns (FLOPs, bytes), linear in the tokens and, if there is a length, in its square."""
    one = measure(_first(seed, small), scope)
    layout = seed.ports[0].layout.split()
    tokens = [word for word in layout if re.fullmatch(r"[BTNHW]", word)]
    count = math.prod(small[word] for word in tokens) or 1
    weights, spread = max(one["weights"], 1), one["inputs"] + one["outputs"]
    linear_flops, linear_moved = one["flops"], one["moved"]
    square_flops = square_moved = 0.0
    if "T" in tokens:
        double = small | {"T": 2 * small["T"]}
        two = measure(_first(seed, double), scope)
        square = count * small["T"]
        square_flops = max(0.0, (two["flops"] - 2 * one["flops"]) / (2 * square))
        grown = (two["moved"] - weights) - 2 * (one["moved"] - weights)
        square_moved = max(0.0, grown / (2 * square))
        linear_flops, linear_moved = linear_flops - square * square_flops, linear_moved - square * square_moved
    product = " * ".join(tokens) or "1"
    flops = [f"{_number(one['written'] / max(one['outputs'], 1))} * outputs"]
    moved = [f"weights + {_number(max(1.0, (linear_moved - one['weights']) / spread))} * (inputs + outputs)"]
    if linear_flops > 0 and one["weights"]:
        flops.append(f"{_number(linear_flops / count / weights)} * {product} * weights")
    wide = small["D"] if "D" in layout else 1
    length = "D * T" if "D" in layout else "T"
    if square_flops > 0:
        flops.append(f"{_number(square_flops / wide)} * {product} * {length}")
    if square_moved > 0:
        moved.append(f"{square_moved / wide:.3g} * {product} * {length}")
    return " + ".join(flops), f"4 * ({' + '.join(moved)})"


def measured(seed: Seed, small: dict[str, int], most_weights: int) -> Seed:
    """Returns the seed with its cost, the index of its output and its initialisation. Raises Unfit for a layer that is
    too large or has no tensor as output, and what the library raises."""
    scope = scope_of(seed)
    binding = _first(seed, small)
    with torch.device("meta"), torch.no_grad():
        layer = binding.layer(scope)
        if layer is not None and sum(item.numel() for item in layer.parameters()) > most_weights:
            raise Unfit("too large to be tried: its configuration fixes more than 80 million weights")
        made = binding.call(scope, layer, binding.inputs("meta"))
    seed = seed.model_copy(update={"call": seed.call + _element(made, seed.family)})
    if seed.constructor is not None:
        marked = made_with_marks(lambda: binding.layer(scope))
        if unset := _unset(marked):
            lines = _MATRICES if all(item.dim() > 1 for item in unset) else _ALL
            seed = seed.model_copy(update={"initialize": lines, "imports": (_NN, *seed.imports)})
    flops, moved = _formulas(seed, scope, small)
    return seed.model_copy(update={"flops": flops, "moved": moved})
