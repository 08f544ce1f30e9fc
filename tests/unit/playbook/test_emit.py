"""What a proposal's `model_new.py` says."""

from __future__ import annotations

from cuda_agent.core.graph import Graph
from cuda_agent.playbook.emit import parameters


def test_parameters_take_no_name_that_means_something_else() -> None:
    graph = Graph.model_construct(forward_parameters=("x", "input", "input_", "torch", "mask"))
    assert parameters(graph) == ["x", "input_", "input__", "torch_", "mask"]
