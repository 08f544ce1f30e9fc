"""Lists the callables of the installed torch, and says why some give no seed.

It runs inside a sandbox. A callable that the catalogue doesn't describe is classified by its schema (aliases, tags,
arguments) and by calls on tensors. Element-wise operators become seeds, so that those of a new version are found.
"""

import inspect
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pkgutil import resolve_name
from typing import Any

import torch
from torch import nn

from cuda_agent.core.assets import tables
from cuda_agent.tasks.crawl.catalogue import SMALL, SMALL_LEADING
from cuda_agent.tasks.crawl.trial import Unfit, attempt, serving, tensors
from cuda_agent.tasks.records import Port, Seed, Values

_SPACES = ("torch.nn", "torch.nn.functional", "torch", "torch.Tensor", "torch.special", "torch.linalg", "torch.fft")
_PREFIX = {"torch.nn": "nn", "torch.nn.functional": "F", "torch.Tensor": "Tensor"}
_BACKENDS = ("mkldnn", "cudnn", "miopen", "fbgemm", "quantize", "q_", "fake_quant", "sparse", "batch_norm_")
_VALUES: tuple[Values, ...] = ("normal", "uniform", "positive")
_SHAPES = ((2, 8, 16, 16), (2, 8, 16), (2, 4, 6, 8, 8))


def names() -> list[str]:
    """Returns all public callables in their usual spelling: `nn.Linear`, `F.relu`, `torch.add`, `Tensor.add`."""
    found = []
    for space in _SPACES:
        holder = resolve_name(space)
        for name in sorted(dir(holder)):
            value = inspect.getattr_static(holder, name, None)
            if name.startswith("_") or not callable(getattr(holder, name, None)) or inspect.ismodule(value):
                continue
            layer = inspect.isclass(value) and issubclass(value, nn.Module)
            if layer if space == "torch.nn" else not inspect.isclass(value):
                found.append(f"{_PREFIX.get(space, space)}.{name}")
    return found


def _schemas(name: str) -> list[Any]:
    packets = [getattr(torch.ops.aten, prefix + name, None) for prefix in ("", "special_", "linalg_", "fft_")]
    return [getattr(packet, overload) for packet in packets if packet is not None for overload in packet.overloads()]


def _by_schema(name: str) -> str | None:
    """Returns why the operator's schemas exclude it, or None."""
    overloads = [item for item in _schemas(name) if "out" not in item._overloadname]
    if not overloads:
        return None
    if any(torch.Tag.nondeterministic_seeded in item.tags for item in overloads):
        return "stochastic: its schema is tagged as drawing from the generator"
    takes = [any("Tensor" in str(argument.type) for argument in item._schema.arguments) for item in overloads]
    if not any(takes):
        return "takes no tensor: it makes one, or needs a setting"
    gives = [any("Tensor" in str(item.type) for item in overload._schema.returns) for overload in overloads]
    if not any(gives):
        return "its output is no tensor"
    alias = [item._schema.returns[0].alias_info for item in overloads if item._schema.returns]
    if all(item is not None and item.is_write for item in alias):
        return "writes into its inputs"
    if all(item is not None and not item.is_write for item in alias):
        return "a view of its input: nothing is computed"
    if any(torch.Tag.dynamic_output_shape in item.tags for item in overloads):
        return "its shape depends on values, by its schema's tag"
    return None


def _instances(cls: Any) -> Iterator[Any]:
    """Yields layers with few, small arguments."""
    settings: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        *((sizes, {}) for sizes in ((), (8,), (2,), (8, 8), (8, 8, 3), (8, 8, 1))),
        *(((2,), extra) for extra in ({"output_ratio": 0.5}, {"output_size": 4})),
    ]
    for sizes, extra in settings:
        with suppress(TypeError, ValueError, RuntimeError, AssertionError):
            yield cls(*sizes, **extra)


def _module_reason(cls: Any) -> str:
    for layer in _instances(cls):
        if any(torch.nn.parameter.is_lazy(item) for item in (*layer.parameters(), *layer.buffers())):
            return "lazy: its weights take their shape from the first input"
        if type(layer).forward is nn.Module.forward:
            return "has other modules or settings; computes nothing itself"
        for shape in _SHAPES:
            x = torch.randn(shape)
            try:
                made = []
                for state in (1, 2):
                    torch.manual_seed(state)
                    made.append(tensors(layer.train()(x))[0])
            except Exception:  # noqa: BLE001 - these inputs aren't for this layer
                continue
            if made[0].shape != made[1].shape or not torch.equal(*made):
                return "stochastic: two runs in training from different states of the generator differ"
            if made[0].untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
                return "a view of its input: nothing is computed"
    return "no page of the catalogue describes it"


def _seed(full: str, ports: int, values: Values) -> Seed:
    names = ("x", "y")[:ports]
    space, _, name = full.rpartition(".")
    call = (
        f"{{x}}.{name}({'{y}' if ports == 2 else ''})"
        if space == "Tensor"
        else f"{full}({', '.join('{' + item + '}' for item in names)})"
    )
    library = {"F": "import torch.nn.functional as F", "Tensor": ""}.get(space, "import torch")
    return Seed(
        name=full, library="torch", operator=name, family="pointwise",
        spelling="method" if space == "Tensor" else "functional",
        ports=tuple(Port(name=item, layout="*", values=values) for item in names),
        imports=(library,) if library else (), call=call, moved="4 * (inputs + outputs)",
        says=f"{name.replace('_', ' ')} of each element",
    )  # fmt: skip


def _element_wise(seed: Seed) -> bool:
    """Returns whether the seed gives one tensor of real numbers, with its input's shape and type."""
    x = torch.rand(4, 6) + 0.1
    scope: dict[str, Any] = {"torch": torch, "F": nn.functional, "x": x, "y": x.clone()}
    made = eval(seed.call.replace("{", "").replace("}", ""), scope)
    return (
        isinstance(made, torch.Tensor) and made.shape == x.shape and made.is_floating_point() and made.dtype == x.dtype
    )


def _function_outcome(full: str) -> dict[str, Any]:
    """Returns a seed for an element-wise operator, else the reason of the last call."""
    overloads = _schemas(full.rpartition(".")[2])
    if not overloads and not full.startswith("F."):
        return {"reason": "no operator of the dispatcher: a setting, a conversion or a tool"}
    reason = "can't be called with one or two ordinary tensors, and no page of the catalogue describes it"
    for ports in (1, 2):
        for values in _VALUES:
            seed = _seed(full, ports, values)
            try:
                graph = attempt(seed, SMALL, SMALL_LEADING)
            except Unfit as unfit:
                reason = str(unfit)
                continue
            except Exception:  # noqa: BLE001 - the library refuses such a call
                continue
            if any(torch.Tag.pointwise in item.tags for item in overloads) and _element_wise(seed):
                return {"seed": seed.model_dump(mode="json"), "graph": graph}
            return {"reason": "no element-wise operator, and no page of the catalogue describes it", "graph": graph}
    return {"reason": reason}


def outcome(job: dict[str, Any]) -> dict[str, Any]:
    """Returns {"names": …} for {"list": true}, and for {"name": …} a {"seed": …, "graph": …} or {"reason": …}."""
    if job.get("list"):
        return {"names": names()}
    written = next((reason for pattern, reason in tables(__file__).items() if fnmatch(job["name"], pattern)), None)
    if written is not None:
        return {"reason": written}
    space, _, name = job["name"].rpartition(".")
    if space == "nn":
        return {"reason": _module_reason(getattr(nn, name))}
    if any(word in name for word in _BACKENDS):
        return {"reason": "of one backend, or for quantized or sparse tensors"}
    if name.endswith("_"):
        return {"reason": "writes into its inputs"}
    reason = _by_schema(name)
    return {"reason": reason} if reason is not None else _function_outcome(job["name"])


create = serving(outcome)
