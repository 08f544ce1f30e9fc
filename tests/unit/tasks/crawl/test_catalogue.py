"""The catalogue as seeds, without running them."""

from __future__ import annotations

from collections import Counter

from cuda_agent.tasks.crawl import catalogue
from cuda_agent.tasks.crawl.binding import bindings, unbound
from cuda_agent.tasks.expressions import placeholders
from cuda_agent.tasks.records import Seed


def _named(name: str) -> Seed:
    return next(entry.seed for entry in catalogue.read() if entry.seed.name == name)


def test_names_are_unique_and_many() -> None:
    names = Counter(entry.seed.name for entry in catalogue.read())
    assert max(names.values()) == 1
    assert len(names) >= 500
    assert len({entry.seed.operator for entry in catalogue.read()}) >= 300


def test_ports_and_parameters_settle_every_name() -> None:
    for entry in catalogue.read():
        assert unbound(entry.seed) == (), entry.seed.name
        assert ("layer" in placeholders(entry.seed.call)) == (entry.seed.constructor is not None), entry.seed.name


def test_small_sizes_meet_the_conditions_and_cost_something() -> None:
    for entry in catalogue.read():
        for binding in bindings(entry.seed, entry.small, catalogue.SMALL_LEADING):
            flops, moved = binding.cost(1000, 100, 500)
            assert flops >= 0 and moved > 0, entry.seed.name


def test_a_spelling_keeps_only_the_parameters_that_it_uses() -> None:
    assert [item.name for item in _named("nn.Linear").parameters] == ["out_features", "bias"]
    assert _named("F.linear").parameters == ()
    assert [item.name for item in _named("nn.Conv2d").parameters][:2] == ["out_channels", "kernel_size"]
    assert "padding" in {item.name for item in _named("nn.Conv2d").parameters}


def test_imports_are_those_of_the_text() -> None:
    assert _named("nn.ReLU").imports == ("from torch import nn",)
    assert _named("F.relu").imports == ("import torch.nn.functional as F",)
    assert _named("Tensor.relu").imports == ()


def test_callees() -> None:
    assert catalogue.callees(_named("Tensor.cumsum")) == ("Tensor.cumsum",)
    assert set(catalogue.callees(_named("nn.TransformerEncoder"))) == {
        "nn.TransformerEncoder",
        "nn.TransformerEncoderLayer",
    }
