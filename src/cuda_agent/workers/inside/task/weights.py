"""Draws weights again, so that values that initialisation leaves trivial (zero biases, unit scales) count in
verification."""

from __future__ import annotations

from typing import Any

import torch

from cuda_agent.core.errors import TaskError
from cuda_agent.core.graph import TensorMeta
from cuda_agent.workers.inside.task.pytree import tensor_meta
from cuda_agent.workers.inside.task.taskmodule import MADE, make_model


def redraw(model: Any, seed: int) -> None:
    """Draws new weights for a model of `make_model`, in place and deterministic in `seed`.

    Parameters are drawn as by its constructor under `seed`; those that come out constant (all c) become c + 0.1·max(1,
    |c|)·N(0, 1). Running means ~ 0.1·N(0, 1), running variances ~ U(0.5, 1.5). All other buffers stay. Tied weights
    stay tied, since each tensor is written once, in place. They are drawn on the model's device where its constructor
    allows it, so the values depend on the device.
    """
    if model not in MADE:
        raise TaskError("weights can be redrawn only for a model that make_model made")
    device = next((str(t.device) for t in model.state_dict().values() if isinstance(t, torch.Tensor)), "cpu")
    twin = make_model(*MADE[model], device, seed, own_seeds=False, on_device=True)
    generator = torch.Generator(device).manual_seed(seed ^ 0x5EED)
    targets = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, fresh in twin.named_parameters():
            targets[name].copy_(_perturbed(fresh, generator))
        for name, fresh in twin.named_buffers():
            drawn = _statistics(name, fresh, generator)
            if drawn is not None:
                targets[name].copy_(drawn)


def _perturbed(fresh: Any, generator: Any) -> Any:
    """Returns the drawn values, moved off a constant where they are one."""
    if not fresh.is_floating_point() or fresh.numel() == 0:
        return fresh
    first = fresh.flatten()[0]
    if not bool(torch.isfinite(first)) or not bool((fresh == first).all()):
        return fresh
    constant = float(first)
    noise = torch.randn(fresh.shape, generator=generator, dtype=torch.float32, device=fresh.device)
    return (constant + 0.1 * max(1.0, abs(constant)) * noise).to(fresh.dtype)


def _statistics(name: str, fresh: Any, generator: Any) -> Any | None:
    last = name.rpartition(".")[2]
    if last == "running_mean":
        return 0.1 * torch.randn(fresh.shape, generator=generator, device=fresh.device)
    if last == "running_var":
        return 0.5 + torch.rand(fresh.shape, generator=generator, device=fresh.device)
    return None


def state_versions(model: Any) -> dict[str, tuple[int, int]]:
    """Returns what changes when a parameter or a buffer is replaced or written to, by name."""
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: (id(tensor), tensor._version) for name, tensor in tensors}


def changed_names(before: dict[str, tuple[int, int]], model: Any) -> tuple[str, ...]:
    """Returns the parameters and buffers that are others than `before`."""
    return tuple(name for name, version in state_versions(model).items() if before.get(name) != version)


def state_metas(model: Any) -> dict[str, TensorMeta]:
    """Returns the meta of every tensor of the state dict by name."""
    return {name: tensor_meta(t) for name, t in model.state_dict().items() if isinstance(t, torch.Tensor)}
