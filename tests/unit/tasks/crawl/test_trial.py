"""What a trial finds out about a seed: chance, laziness, views, constants, shapes."""

from __future__ import annotations

import pytest

from cuda_agent.tasks.crawl import catalogue, trial
from cuda_agent.tasks.crawl.costs import measured
from cuda_agent.tasks.records import Port, Seed

_SMALL = catalogue.SMALL


def _seed(call: str, *, constructor: str | None = None, layout: str = "* D", **about: object) -> Seed:
    return Seed.model_validate(
        {
            "name": "tried", "library": "torch", "operator": "tried", "family": "test",
            "spelling": "module" if constructor else "functional", "ports": (Port(name="x", layout=layout),),
            "imports": ("import torch", "from torch import nn", "import torch.nn.functional as F"),
            "constructor": constructor, "call": call, "says": "a test", **about,
        }
    )  # fmt: skip


def _outcome(seed: Seed) -> dict[str, str]:
    return trial.outcome({"seed": seed.model_dump(mode="json"), "small": _SMALL, "leading": (2, 3)})


def test_a_good_seed_has_a_graph() -> None:
    found = _outcome(_seed("torch.cumsum({x}, dim=-1)"))
    assert set(found) == {"graph"}
    assert found == _outcome(_seed("{x}.cumsum(-1)"))


@pytest.mark.parametrize(
    ("call", "constructor", "reason"),
    [
        ("torch.bernoulli({x}.sigmoid())", None, "stochastic"),
        ("{x} * torch.rand(())", None, "stochastic"),
        ("F.dropout({x})", None, "stochastic"),
        ("{layer}({x})", "nn.Dropout()", "stochastic in training"),
        ("{layer}({x})", "nn.RReLU()", ""),
        ("{layer}({x})", "nn.LazyLinear(8)", "lazy"),
        ("{layer}({x})", "nn.Identity()", "a view"),
        ("{x}.transpose(0, 1)", None, "a view"),
        ("torch.zeros_like({x})", None, "doesn't depend"),
        ("{x}.relu_()", None, "writes into its inputs"),
        ("torch.nonzero({x} > 0)", None, "shape depends on values"),
        ("{x}.shape", None, "no tensor"),
        ("torch.log({x})", None, "isn't finite"),
        ("torch.fft.fft({x})", None, "complex"),
        ("torch.no_such_operator({x})", None, "fails: AttributeError"),
    ],
)
def test_what_gives_no_seed_says_why(call: str, constructor: str | None, reason: str) -> None:
    found = _outcome(_seed(call, constructor=constructor))
    if reason:
        assert reason in found["reason"]
    else:
        assert "graph" in found


def test_a_tag_alone_makes_nothing_stochastic() -> None:
    ports = tuple(Port(name=name, layout="B 2 T K") for name in ("x", "y", "z"))
    assert "graph" in _outcome(_seed("F.scaled_dot_product_attention({x}, {y}, {z})", ports=ports))


def test_every_choice_is_tried() -> None:
    seed = _seed("torch.softmax({x}, dim={dim})", parameters=({"name": "dim", "choices": ("-1", "7")},))
    assert "IndexError" in _outcome(seed)["reason"]
    assert "graph" in _outcome(seed.model_copy(update={"where": ("dim < 5",)}))


def test_measured_costs_of_a_layer() -> None:
    seed = measured(_seed("{layer}({x})", constructor="nn.Linear({D}, 32)", layout="B T D"), _SMALL, 10**6)
    assert "2 * B * T * weights" in seed.flops or "1.88 * B * T * weights" in seed.flops
    assert seed.initialize == ()


def test_weights_without_values_are_noticed() -> None:
    module = "nn.ParameterList([torch.empty({D}, {D})])"
    seed = measured(_seed("{x} @ {layer}[0]", constructor=module, layout="B T D"), _SMALL, 10**6)
    assert seed.initialize[0] == "for weight in {layer}.parameters():"
