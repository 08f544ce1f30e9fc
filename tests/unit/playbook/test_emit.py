"""What a proposal's `model_new.py` says."""

from __future__ import annotations

from typing import Any

import pytest

from cuda_agent.core.graph import Graph
from cuda_agent.playbook.emit import parameters, refusals, signature


def test_parameters_take_no_name_that_means_something_else() -> None:
    graph = Graph.model_construct(forward_parameters=("x", "input", "input_", "torch", "mask"))
    assert parameters(graph) == ["x", "input_", "input__", "torch_", "mask"]


def test_forward_takes_the_arguments_of_the_task() -> None:
    graph = Graph.model_construct(
        forward_parameters=("x", "mask", "size"),
        forward_defaults={"mask": "None", "size": "(1, 2)", "scale": "1.0", "input": "None"},
    )
    assert signature(graph) == "self, x, mask=None, size=(1, 2), *, scale=1.0, input_=None"
    assert signature(Graph.model_construct(forward_parameters=("x", "y"), forward_defaults={})) == "self, x, y"


def test_other_values_of_numbers_and_texts_are_refused() -> None:
    graph = Graph.model_construct(
        forward_parameters=("x", "input", "mask"),
        forward_defaults={"scale": "1.0"},
        fixed={"input": "3", "mask": "None", "scale": "1.0"},
    )
    text = "def forward(x, input_, mask, scale):\n" + "".join(
        f"    {line}\n" for line in [*refusals(graph), "return x"]
    )
    names: dict[str, Any] = {}
    exec(text, names)
    assert names["forward"](7, 3, None, 1.0) == 7
    for given in ((7, 4, None, 1.0), (7, 3, 0, 1.0), (7, 3, None, 2.0)):
        with pytest.raises(ValueError, match="which the kernels are made for"):
            names["forward"](*given)
