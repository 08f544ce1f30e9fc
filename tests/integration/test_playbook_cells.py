"""Cells of recurrent layers in the form in which a GPU's capture has them, run by the playbook's kernels on the CPU."""

from __future__ import annotations

import pytest
import torch

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import Graph, GraphInput, Node, Ref, TensorMeta, ValueKind
from playbook_harness import run_steps

pytestmark = pytest.mark.integration

BATCH, HIDDEN = 5, 24


def meta(*shape: int) -> TensorMeta:
    steps = [1]
    for size in reversed(shape[1:]):
        steps.insert(0, steps[0] * size)
    return TensorMeta(shape=shape, dtype="float32", strides=tuple(steps))


def cell_graph(op: str, gates: int, results: int, biased: bool) -> Graph:
    shapes = {
        "gates_x": (BATCH, gates * HIDDEN), "gates_h": (BATCH, gates * HIDDEN), "state": (BATCH, HIDDEN),
        "bias_x": (gates * HIDDEN,), "bias_h": (gates * HIDDEN,),
    }  # fmt: skip
    names = list(shapes) if biased else list(shapes)[:3]
    state = meta(BATCH, HIDDEN)
    cell = Node(
        name="cell", op=f"aten.{op}.default", args=[Ref(ref=name) for name in names],
        outputs=(*[state] * results, meta(BATCH, (gates + (gates == 3) * 2) * HIDDEN)),
    )  # fmt: skip
    items = [
        Node(name=f"item_{at}", op="operator.getitem", args=[Ref(ref="cell"), at], outputs=(state,))
        for at in range(results)
    ]
    return Graph(
        inputs=tuple(
            GraphInput(name=name, kind=ValueKind.INPUT, meta=meta(*shapes[name]), position=place)
            for place, name in enumerate(names)
        ),
        nodes=(cell, *items),
        outputs=tuple(item.name for item in items),
    )


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("kind", "op", "gates"), [("LSTM", "_thnn_fused_lstm_cell", 4), ("GRU", "_thnn_fused_gru_cell", 3)]
)
def test_a_cell_is_one_kernel(kind: str, op: str, gates: int, biased: bool) -> None:
    cell = getattr(torch.nn, f"{kind}Cell")(7, HIDDEN, bias=biased)
    x, h, c = torch.randn(BATCH, 7), torch.randn(BATCH, HIDDEN), torch.randn(BATCH, HIDDEN)
    with torch.no_grad():
        truth = cell(x, (h, c)) if kind == "LSTM" else (cell(x, h),)
        inputs = [x @ cell.weight_ih.T, h @ cell.weight_hh.T, c if kind == "LSTM" else h]
        inputs += [cell.bias_ih, cell.bias_hh] if biased else []
    graph = cell_graph(op, gates, len(truth), biased)
    ((_, found, steps),) = run_steps(graph, torch.nn.Identity(), [item.contiguous() for item in inputs], Device.CPU)
    assert len(steps) == 1
    for mine, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
