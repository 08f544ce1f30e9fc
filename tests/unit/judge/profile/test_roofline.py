"""Bytes that an answer must touch, and times that can't be."""

from __future__ import annotations

import pytest
import torch

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Graph, GraphInput, Node, Ref, TensorMeta, ValueKind
from cuda_agent.judge.profile.roofline import Hardware, Work, datasheet, examine, hardware, needed_values, work_of

N = 1 << 20
H200 = Hardware("NVIDIA H200", 4.8e12, l2_bytes=50 << 20, flop_s=495e12)


def meta(*shape: int, dtype: str = "float32") -> TensorMeta:
    strides = tuple(int(s) for s in torch.empty(shape, device="meta").stride())
    return TensorMeta(shape=shape, dtype=dtype, strides=strides)


def given(name: str, *shape: int, kind: ValueKind = ValueKind.INPUT) -> GraphInput:
    return GraphInput(name=name, kind=kind, meta=meta(*shape))


def node(name: str, op: str, args: tuple[object, ...], *shape: int) -> Node:
    return Node(name=name, op=f"aten.{op}.default", args=args, outputs=(meta(*shape),))  # type: ignore[arg-type]


def test_what_is_read_and_written() -> None:
    graph = Graph(
        inputs=(given("x", N), given("bias", 1), given("unused", N), given("w", N, kind=ValueKind.PARAMETER)),
        nodes=(
            node("a", "mul", (Ref(ref="x"), Ref(ref="w")), N),
            node("b", "add", (Ref(ref="a"), Ref(ref="bias")), N),
        ),
        outputs=("b",),
    )
    assert work_of(graph, [meta(N)]) == Work(4 * N + 4, 4 * N)


@pytest.mark.parametrize("op", ["slice", "select", "index", "embedding", "gather", "no_such_operator"])
def test_what_is_read_in_part_does_not_count(op: str) -> None:
    nodes = (node("a", "relu", (Ref(ref="x"),), N), node("b", op, (Ref(ref="a"), 0, 0, 8), 8))
    graph = Graph(inputs=(given("x", N),), nodes=nodes, outputs=("b",))
    assert work_of(graph, [meta(8)]).read_bytes == 0, "only eight elements of x are needed"


def test_dead_code_and_masks() -> None:
    nodes = (
        node("dead", "sum", (Ref(ref="y"),), 1),
        node("m", "gt", (Ref(ref="c"), 0), N),
        node("o", "where", (Ref(ref="m"), Ref(ref="x"), Ref(ref="y")), N),
    )
    graph = Graph(inputs=(given("x", N), given("y", N), given("c", N)), nodes=nodes, outputs=("o",))
    assert {"c", "m", "o"} == needed_values(graph), "masked elements need not be read"


def test_views_of_one_result_are_written_once() -> None:
    nodes = (node("a", "relu", (Ref(ref="x"),), N), node("v", "view", (Ref(ref="a"), [2, N // 2]), 2, N // 2))
    graph = Graph(inputs=(given("x", N),), nodes=nodes, outputs=("a", "v"))
    assert work_of(graph, [meta(N), meta(2, N // 2)]).written_bytes == 4 * N
    assert work_of(None, [meta(N), meta(2, N // 2)]) == Work(0, 4 * N)


def test_operations() -> None:
    nodes = (
        node("p", "addmm", (Ref(ref="b"), Ref(ref="x"), Ref(ref="w")), 64, 32),
        node(
            "q", "convolution", (Ref(ref="i"), Ref(ref="k"), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), 2, 8, 6, 6
        ),
    )
    inputs = (given("b", 32), given("x", 64, 128), given("w", 128, 32), given("i", 2, 4, 8, 8), given("k", 8, 4, 3, 3))
    graph = Graph(inputs=inputs, nodes=nodes, outputs=("p", "q"))
    assert work_of(graph, [meta(64, 32), meta(2, 8, 6, 6)]).flops == 2 * 64 * 32 * 128 + 2 * (2 * 8 * 6 * 6) * 4 * 3 * 3
    skipping = nodes[1].model_copy(update={"args": (*nodes[1].args[:3], [2, 2], *nodes[1].args[4:])})
    assert "i" not in needed_values(graph.model_copy(update={"nodes": (nodes[0], skipping)}))


def test_verdicts() -> None:
    work = Work(read_bytes=480_000_000, written_bytes=480_000_000 + (50 << 20), flops=10**12)
    assert examine(199.0, work, H200).quarantine and "datasheet" in str(examine(199.0, work, H200).quarantine)
    assert examine(201.0, work, H200).quarantine is None
    assert "fewer operations" in str(examine(1000.0, work, H200).flag) and examine(2100.0, work, H200).flag is None
    assert examine(0.5, Work(0, 50 << 20), H200).quarantine is None, "it may all lie in the cache"


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("NVIDIA H200", 4.8), ("NVIDIA H100 80GB HBM3", 3.35), ("NVIDIA H100 PCIe", 2.04), ("NVIDIA L40S", 0.864),
        ("NVIDIA A100-SXM4-80GB", 2.04), ("NVIDIA A100 80GB PCIe", 1.94), ("NVIDIA A100-SXM4-40GB", 1.56),
        ("NVIDIA L4", 0.3), ("NVIDIA A10G", 0.6), ("NVIDIA GH200 480GB", 4.9), ("Tesla T4", 0.32), ("NVIDIA H20", 4.0),
    ],
)  # fmt: skip
def test_datasheets(name: str, memory: float) -> None:
    peak = datasheet(name)
    assert peak is not None and peak.memory_tb_s == memory


def test_unknown_hardware() -> None:
    assert datasheet("NVIDIA Z1") is None
    assert hardware(Device.CPU, Precision.TF32) is None
