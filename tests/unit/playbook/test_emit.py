"""What a proposal's `model_new.py` says."""

from __future__ import annotations

from cuda_agent.core.graph import Graph
from cuda_agent.playbook.emit import parameters, signature


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
