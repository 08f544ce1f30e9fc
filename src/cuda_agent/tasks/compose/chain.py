"""Chains operators: shapes and parameters are solved by calling each seed on meta tensors."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import TYPE_CHECKING, Any

from cuda_agent.core.errors import UsageError
from cuda_agent.tasks.compose.layouts import Unsolvable, bind, concrete, leading, value
from cuda_agent.tasks.expressions import fill, names_in, placeholders
from cuda_agent.tasks.records import Seed

if TYPE_CHECKING:
    import torch

#: The errors that a library raises for shapes or settings that it doesn't accept.
_REFUSALS = (
    RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, NotImplementedError, AssertionError,
    ImportError, ZeroDivisionError,
)  # fmt: skip
_LIBRARIES = ("torch", "transformers", "math")
#: The least length of a dimension along which an operator sums, sorts or normalises another's result.
_FEWEST = 8
#: The sequence lengths at which a recurrent layer's shapes are found.
_FEW_STEPS = (2, 3)


@dataclass(frozen=True)
class Link:
    """A seed in a chain, with the chosen expression for each of its parameters."""

    seed: Seed
    choices: tuple[str, ...]

    @property
    def free(self) -> tuple[str, ...]:
        """The dimensions that the tensor before doesn't determine, in order."""
        given = {*names_in(self.seed.ports[0].layout), *(item.name for item in self.seed.parameters)}
        names = dict.fromkeys(name for port in self.seed.ports[1:] for name in names_in(port.layout))
        names |= dict.fromkeys(name for port in self.seed.ports for name in names_in(port.high or "0"))
        return tuple(name for name in names if name not in given)


@dataclass(frozen=True)
class Plan:
    """A chain without its sizes. `lead` has words for the dimensions before the first tensor's named ones."""

    links: tuple[Link, ...]
    lead: tuple[str, ...] = ()

    def unknowns(self) -> tuple[tuple[int, str], ...]:
        """Returns (position, name) of every size that must be chosen: first those of the first tensor."""
        first = (*self.lead, *names_in(self.links[0].seed.ports[0].layout))
        given = {(0, name): None for name in first}
        given |= {(position, name): None for position, link in enumerate(self.links) for name in link.free}
        return tuple(given)


@dataclass(frozen=True)
class ChainStep:
    """A solved link. `names` has its dimensions and parameters, and `shapes` those of its ports. `outputs` are the
    call's results on the meta device; with `plain` it is one tensor. `layer` is the module, or None for a function.
    `weights` counts elements, and `moved` bytes."""

    link: Link
    names: dict[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    outputs: tuple[torch.Tensor, ...]
    plain: bool
    layer: Any
    weights: int
    flops: float
    moved: float

    @property
    def seed(self) -> Seed:
        return self.link.seed


def solve(plan: Plan, sizes: Mapping[tuple[int, str], int]) -> tuple[ChainStep, ...]:
    """Returns the chain at these sizes of all its unknowns. Raises Unsolvable where its shapes don't fit."""
    import torch

    first = plan.links[0].seed.ports[0]
    names = {name: sizes[0, name] for name in names_in(first.layout)}
    before = tuple(sizes[0, name] for name in plan.lead)
    current = torch.empty(concrete(first.layout, names, before), dtype=_dtype(first.dtype), device="meta")
    steps: list[ChainStep] = []
    for position, link in enumerate(plan.links):
        if steps and not steps[-1].plain:
            raise Unsolvable("nothing follows several outputs")
        chosen = {name: sizes[position, name] for name in link.free}
        steps.append(_step(position, link, current, chosen))
        current = steps[-1].outputs[0]
    return tuple(steps)


def _step(position: int, link: Link, current: torch.Tensor, chosen: Mapping[str, int]) -> ChainStep:
    import torch

    seed = link.seed
    first = seed.ports[0]
    if current.dtype != _dtype(first.dtype):
        raise Unsolvable(f"{seed.name} takes {first.dtype}, not {current.dtype}")
    if position and first.layout.startswith("* ") and (current.dim() < 2 or current.shape[-1] < _FEWEST):
        raise Unsolvable(f"{seed.name} needs more than {tuple(current.shape)}")
    names = bind(first.layout, current.shape, chosen)
    for parameter, choice in zip(seed.parameters, link.choices, strict=True):
        names[parameter.name] = value(choice, names)
    for condition in seed.where:
        if not value(condition, names):
            raise Unsolvable(f"{seed.name}: {condition} doesn't hold")
    before = leading(first.layout, current.shape)
    shapes = _shapes(seed, names, tuple(current.shape), before)
    short = seed.family == "recurrent" and names.get("T", 0) > max(_FEW_STEPS)
    made, layer = _called_briefly(seed, names, before) if short else _called(seed, names, _ports(seed, shapes))
    weights = 0 if layer is None else sum(item.numel() for item in (*layer.parameters(), *layer.buffers()))
    outputs = (made,) if isinstance(made, torch.Tensor) else tuple(_tensors(made))
    if not outputs or any(tensor.numel() == 0 for tensor in outputs):
        raise Unsolvable(f"{seed.name} gives no elements")
    counts = {
        **names, "weights": weights, "inputs": sum(math.prod(shape) for shape in shapes),
        "outputs": sum(tensor.numel() for tensor in outputs),
    }  # fmt: skip
    return ChainStep(
        link, names, tuple(shapes), outputs, isinstance(made, torch.Tensor), layer, weights,
        float(value(seed.flops, counts)), float(value(seed.moved, counts)),
    )  # fmt: skip


def _shapes(
    seed: Seed, names: Mapping[str, Any], first: tuple[int, ...], before: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """Returns the shapes of all ports; `before` are the sizes before the named dimensions."""
    return [first, *(concrete(port.layout, names, before) for port in seed.ports[1:])]


def _ports(seed: Seed, shapes: Sequence[tuple[int, ...]]) -> dict[str, torch.Tensor]:
    import torch

    return {
        port.name: torch.empty(shape, dtype=_dtype(port.dtype), device="meta")
        for port, shape in zip(seed.ports, shapes, strict=True)
    }


def _called_briefly(seed: Seed, names: Mapping[str, Any], before: tuple[int, ...]) -> tuple[Any, Any]:
    """Calls a layer that runs step by step on meta tensors with two short sequences. Each size of an output is linear
    in `T`, so they determine the sizes for the full length."""
    import torch

    found = []
    for steps in _FEW_STEPS:
        few = {**names, "T": steps}
        first = concrete(seed.ports[0].layout, few, before)
        made, layer = _called(seed, few, _ports(seed, _shapes(seed, few, first, before)))
        found.append(_tensors(made))
    outputs = [
        tensor.new_empty([_extended(*sizes, names["T"]) for sizes in zip(tensor.shape, other.shape, strict=True)])
        for tensor, other in zip(*found, strict=True)
    ]
    return (outputs[0] if isinstance(made, torch.Tensor) else tuple(outputs)), layer


def _extended(less: int, more: int, steps: int) -> int:
    """Returns the size after `steps` of a size that is `less` and `more` after `_FEW_STEPS`."""
    first, second = _FEW_STEPS
    return less + (more - less) * (steps - first) // (second - first)


def _called(seed: Seed, names: Mapping[str, Any], ports: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    """Returns the seed's output on meta tensors, and its module."""
    import torch

    texts = {name: repr(item) for name, item in names.items()}
    space: dict[str, Any] = {**_imported(seed.imports), **ports}
    try:
        with torch.device("meta"), torch.no_grad():
            if seed.constructor is not None:
                space["layer"] = _evaluated(fill(seed.constructor, texts), space).eval()
            own = {name: name for name in (*ports, "layer")}
            return _evaluated(fill(seed.call, texts | own), space), space.get("layer")
    except _REFUSALS as error:
        raise Unsolvable(f"{seed.name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from None


def _evaluated(text: str, space: dict[str, Any]) -> Any:
    return eval(_compiled(text), {"__builtins__": {"slice": slice, "int": int, "float": float}}, space)


@lru_cache(maxsize=8192)
def _compiled(text: str) -> CodeType:
    """Compiles a seed's expression. Raises UsageError for a private attribute or a function definition."""
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        private = isinstance(node, ast.Attribute) and node.attr.startswith("_")
        if private or isinstance(node, (ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
            raise UsageError(f"{text!r} isn't a call of a library", "Correct the seed")
    return compile(tree, "<seed>", "eval")


@lru_cache(maxsize=1024)
def _imported(lines: tuple[str, ...]) -> dict[str, Any]:
    """Returns the names that a seed's import lines define. Raises UsageError for other libraries than those of the
    seeds."""
    tree = ast.parse("\n".join(("import torch", *lines)))
    for statement in tree.body:
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            raise UsageError(f"{ast.unparse(statement)!r} isn't an import", "Correct the seed")
        imported_from = statement.module if isinstance(statement, ast.ImportFrom) else None
        for name in statement.names:
            if (imported_from or name.name).split(".")[0] not in _LIBRARIES:
                raise UsageError(f"A seed imports {imported_from or name.name}", "Seeds may use torch and transformers")
    space: dict[str, Any] = {}
    exec(compile(tree, "<seed>", "exec"), space)
    del space["__builtins__"]
    return space


def _tensors(made: Any) -> list[torch.Tensor]:
    """Returns the tensors in a call's result, in order."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]


def _dtype(name: str) -> torch.dtype:
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise UsageError(f"{name} isn't a dtype", "Correct the seed")
    return found


def used_names(seed: Seed) -> tuple[str, ...]:
    """Returns the dimensions and parameters in the seed's code, in order."""
    ports = {port.name for port in seed.ports} | {"layer"}
    found = dict.fromkeys((*placeholders(seed.constructor or ""), *placeholders(seed.call)))
    return tuple(name for name in found if name not in ports)
