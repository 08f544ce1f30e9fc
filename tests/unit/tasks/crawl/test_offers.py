"""Why callables of torch give no seed."""

from __future__ import annotations

import pytest

from cuda_agent.tasks.crawl import offers


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("torch.bernoulli", "stochastic"),
        ("Tensor.multinomial", "stochastic"),
        ("F.gumbel_softmax", "stochastic"),
        ("nn.Dropout2d", "stochastic"),
        ("nn.RReLU", "stochastic"),
        ("nn.FractionalMaxPool2d", "stochastic"),
        ("nn.LazyConv2d", "lazy"),
        ("nn.ModuleList", "has other modules"),
        ("nn.Identity", "a view"),
        ("torch.ones", "takes no tensor"),
        ("torch.is_complex", "no tensor"),
        ("Tensor.add_", "writes into its inputs"),
        ("torch.transpose", "a view"),
        ("torch.nonzero", "shape depends on values"),
        ("torch.set_num_threads", "no operator of the dispatcher"),
        ("nn.MaxUnpool2d", "its indices must come from a pooling"),
        ("torch.linalg.svd", "linear algebra"),
    ],
)
def test_reasons(name: str, reason: str) -> None:
    assert reason in offers.outcome({"name": name})["reason"]


def test_an_element_wise_operator_becomes_a_seed() -> None:
    found = offers.outcome({"name": "torch.erfc"})
    assert found["seed"]["call"] == "torch.erfc({x})"
    assert offers.outcome({"name": "torch.lgamma"})["seed"]["ports"][0]["values"] in ("normal", "uniform")
    assert offers.outcome({"name": "torch.hypot"})["seed"]["call"] == "torch.hypot({x}, {y})"


def test_all_spaces_are_listed() -> None:
    names = offers.outcome({"list": True})["names"]
    assert {"nn.Linear", "F.relu", "torch.add", "Tensor.add", "torch.special.ndtr"} <= set(names)
    assert len(names) == len(set(names))
