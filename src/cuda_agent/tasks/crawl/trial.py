"""Tries a seed inside a sandbox, and answers the jobs of a crawl there.

A seed is run at small sizes with every choice of its arguments: twice from different states of the random generator, on
other inputs and on meta tensors.
"""

import hashlib
import json
import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cuda_agent.tasks.crawl.binding import Binding, bindings, unbound
from cuda_agent.tasks.crawl.trials import CrawlJob, CrawlOutcome
from cuda_agent.tasks.records import Seed
from cuda_agent.workers.inside.main import Context
from cuda_agent.workers.requests import Operations


class Unfit(Exception):
    """The reason why a callable gives no seed."""


class _Seen(TorchDispatchMode):  # type: ignore[misc]
    """Records the operators that reach the dispatcher in order, and those that draw random numbers or have shapes that
    depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.random: list[str] = []
        self.dynamic: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.random.append(str(func))
        if torch.Tag.dynamic_output_shape in func.tags:
            self.dynamic.append(str(func))
        return func(*args, **(kwargs or {}))


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _same(one: Any, other: Any) -> bool:
    first, second = tensors(one), tensors(other)
    return len(first) == len(second) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(first, second, strict=True)
    )


def _layer(binding: Binding, scope: dict[str, Any], device: str) -> Any:
    torch.manual_seed(0)
    with torch.device(device):
        layer = binding.layer(scope)
        if layer is None:
            return None
        if binding.seed.initialize:
            exec("\n".join(binding.seed.initialize).replace("{layer}", "layer"), scope | {"layer": layer})
    if any(torch.nn.parameter.is_lazy(item) for item in (*layer.parameters(), *layer.buffers())):
        raise Unfit("lazy: its weights take their shape from the first input")
    return layer


def _run(binding: Binding, scope: dict[str, Any], layer: Any, inputs: dict[str, torch.Tensor], state: int) -> Any:
    torch.manual_seed(state)
    with torch.no_grad():
        return binding.call(scope, layer, inputs)


def _inputs(binding: Binding, state: int, device: str = "cpu") -> dict[str, torch.Tensor]:
    torch.manual_seed(state)
    return binding.inputs(device)


def _judge_outputs(outputs: Any, inputs: dict[str, torch.Tensor]) -> None:
    found = tensors(outputs)
    if not found:
        raise Unfit(f"its output is no tensor but {type(outputs).__name__}")
    for item in found:
        if item.is_complex():
            raise Unfit("its output is complex")
        if item.layout is not torch.strided or item.is_quantized:
            raise Unfit("its output is sparse or quantized")
        if item.is_floating_point() and not bool(torch.isfinite(item).all()):
            raise Unfit("its output isn't finite on ordinary inputs")
    if all(item.numel() == 0 for item in found):
        raise Unfit("its output is empty")
    given = {item.untyped_storage().data_ptr() for item in inputs.values()}
    if all(item.untyped_storage().data_ptr() in given for item in found):
        raise Unfit("a view of its input: nothing is computed")


def _judge_chance(
    binding: Binding, scope: dict[str, Any], layer: Any, inputs: dict[str, torch.Tensor]
) -> tuple[Any, _Seen]:
    """Returns (the output, its operators). Raises Unfit when it draws from the generator, or depends on its state.

    The tag of an operator only says that it may draw; attention has it even with a dropout of zero.
    """
    with _Seen() as seen:
        outputs = _run(binding, scope, layer, inputs, 1)
    _run(binding, scope, layer, inputs, 1)
    if not torch.equal(torch.Generator().manual_seed(1).get_state(), torch.get_rng_state()):
        raise Unfit(f"stochastic: {seen.random[0] if seen.random else 'it'} draws random numbers")
    if not _same(outputs, _run(binding, scope, layer, inputs, 2)):
        raise Unfit("stochastic: two runs from different states of the generator differ")
    return outputs, seen


def _meta(binding: Binding, scope: dict[str, Any], seen: _Seen) -> Any:
    """Returns the output on meta tensors. Raises Unfit when there is none."""
    try:
        return _run(binding, scope, _layer(binding, scope, "meta"), _inputs(binding, 3, "meta"), 1)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        if seen.dynamic:
            raise Unfit(f"its shape depends on values: {seen.dynamic[0]}") from None
        raise Unfit(f"gives no shape on meta tensors: {str(error).splitlines()[0][:120]}") from None


def _judge_training(binding: Binding, scope: dict[str, Any], layer: Any, inputs: dict[str, torch.Tensor]) -> None:
    """Raises Unfit for layers that are random in training and the identity otherwise."""
    if not isinstance(layer, torch.nn.Module):
        return
    quiet = _run(binding, scope, layer, inputs, 1)
    if not _same(quiet, next(iter(inputs.values()))):
        return
    layer.train()
    noisy = [_run(binding, scope, layer, inputs, state) for state in (1, 2)]
    layer.eval()
    if not _same(*noisy):
        raise Unfit("stochastic in training, and does nothing in eval mode")


def _try_binding(binding: Binding, scope: dict[str, Any]) -> list[str]:
    layer = _layer(binding, scope, "cpu")
    inputs = _inputs(binding, 3)
    kept = {name: item.clone() for name, item in inputs.items()}
    outputs, seen = _judge_chance(binding, scope, layer, inputs)
    _judge_training(binding, scope, layer, inputs)
    if not _same(inputs, kept):
        raise Unfit("it writes into its inputs")
    _judge_outputs(outputs, inputs)
    if _same(outputs, _run(binding, scope, layer, _inputs(binding, 4), 1)):
        raise Unfit("its output doesn't depend on its inputs")
    meta = _meta(binding, scope, seen)
    if [item.shape for item in tensors(meta)] != [item.shape for item in tensors(outputs)]:
        raise Unfit("meta tensors give another shape")
    count = [sum(item.numel() for item in tensors(group)) for group in (inputs, outputs)]
    weights = 0 if layer is None else sum(item.numel() for item in layer.parameters())
    flops, moved = binding.cost(count[0], weights, count[1])
    if flops < 0 or moved <= 0:
        raise Unfit("its cost isn't positive")
    return seen.names


def scope_of(seed: Seed) -> dict[str, Any]:
    """Returns the names that the seed's import lines define."""
    scope: dict[str, Any] = {}
    for line in seed.imports:
        exec(line, scope)
    return scope


def attempt(seed: Seed, small: dict[str, int], leading: tuple[int, ...]) -> str:
    """Returns the hash of the seed's operators, in order. Raises Unfit, or what the library raises."""
    if loose := unbound(seed):
        raise Unfit(f"nothing gives {loose[0]} a value")
    scope = scope_of(seed)
    graphs = [_try_binding(binding, scope) for binding in bindings(seed, small, leading)]
    return hashlib.sha256("\n".join(graphs[0]).encode()).hexdigest()[:16]


def outcome(job: dict[str, Any]) -> dict[str, Any]:
    """Returns {"graph": …} or {"reason": …}."""
    try:
        seed = Seed.model_validate(job["seed"])
        return {"graph": attempt(seed, job["small"], tuple(job["leading"]))}
    except Unfit as unfit:
        return {"reason": str(unfit)}
    except Exception as error:  # noqa: BLE001 - the boundary to the library under trial
        first = str(error).strip().splitlines()
        return {"reason": f"fails: {type(error).__name__}: {first[0] if first else ''}"[:300]}


def serving(outcome: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Context], Operations]:
    """Returns the `create` of a module whose function `outcome` answers the jobs."""

    def create(_context: Context) -> Operations:
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        return {CrawlJob: lambda request: CrawlOutcome(outcome=json.dumps(outcome(json.loads(request.job))))}

    return create


create = serving(outcome)
