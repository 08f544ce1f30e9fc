"""Scaled weights keep the signal of the inputs, also where no module of torch holds them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cuda_agent.workers.inside.task.scaling import scale_weights


class Functional(nn.Module):
    """Layers of its own, and a step that it repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(1e-3 * torch.randn(6, 32, 32))
        self.bias = nn.Parameter(torch.randn(32))
        self.last = nn.Parameter(1e-3 * torch.randn(32, 8))

    def forward(self, x: Any) -> Any:
        for weight in self.weights:
            x = torch.relu(nn.functional.linear(x, weight, self.bias))
        for _ in range(3):
            x = torch.tanh(x @ self.weights[0])
        return x @ self.last


MODELS = {
    "functional": (Functional, [torch.randn(64, 32)]),
    "convolutions": (
        lambda: nn.Sequential(*[m for _ in range(12) for m in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())]),
        [torch.randn(2, 8, 12, 12)],
    ),
    "norms": (
        lambda: nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU())]),
        [torch.randn(64, 16)],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_answers_to_other_inputs_differ(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model = make().eval()
    others = [torch.randn_like(x) for x in inputs]

    def apart() -> float:
        with torch.no_grad():
            mine, theirs = model(*inputs), model(*others)
        return float((mine - theirs).norm() / mine.norm())

    before = apart()
    scale_weights(model, lambda: model(*inputs))
    assert before < 0.05 < 0.1 < apart()


def test_what_meets_zeros_only_stays() -> None:
    model = nn.Linear(8, 8)
    before = model.weight.clone()
    scale_weights(model, lambda: model(torch.zeros(4, 8)))
    assert torch.equal(model.weight, before)


def test_a_norm_that_is_used_again_is_scaled_once() -> None:
    norm, x = nn.BatchNorm1d(16).eval(), 3.0 * torch.randn(64, 16)
    norm.running_mean.fill_(0.1)

    def forward() -> None:
        y = x
        for _ in range(50):
            y = norm(y)

    scale_weights(norm, forward)
    assert float(norm.running_mean[0]) == pytest.approx(0.3, rel=0.2)
    assert float(norm.running_var.mean()) == pytest.approx(9.0, rel=0.3)


def test_a_product_has_unit_size_without_its_bias() -> None:
    model, x = nn.Linear(32, 32), torch.randn(256, 32)
    model.bias.data.fill_(100.0)
    scale_weights(model, lambda: model(x))
    with torch.no_grad():
        assert float((model(x) - model.bias).square().mean().sqrt()) == pytest.approx(1.0, rel=1e-3)
