"""Attention as one kernel: a plan beside the products', where the kernel is written for it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from library_kernels import graph_of
from torch import nn

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import TensorMeta
from cuda_agent.playbook.plan import StridedView
from cuda_agent.playbook.proposal import Proposal, proposals
from cuda_agent.playbook.skills.attention.skill import batch_levels


class Heads(nn.Module):
    """Attention over heads that lie between the features of one projection."""

    def __init__(self, heads: int, **how: object) -> None:
        super().__init__()
        self.heads, self.how = heads, how

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, k, v))
        return F.relu(F.scaled_dot_product_attention(q, k, v, **self.how).transpose(1, 2).flatten(2))


def plans(module: nn.Module, width: int = 128, device: Device = Device.CUDA, precision: Precision = Precision.TF32,
          dtype: torch.dtype = torch.float32) -> tuple[Proposal, ...]:  # fmt: skip
    inputs = [torch.randn(2, length, width, dtype=dtype) for length in (24, 40, 40)]
    return proposals(graph_of(module, inputs), device, precision)


def test_one_kernel_reads_heads_where_they_lie() -> None:
    products, whole = plans(Heads(2))
    assert "attention" not in products.skills and whole.skills == ("attention", "pointwise")
    assert [name for name in whole.files if "attention" in name] == ["kernels/attention_64.cu"]
    binding = next(text for name, text in whole.files.items() if name.endswith(".cpp"))
    # outer and inner batch, rows, keys; then of q, k, v and the result the steps between images, heads and rows.
    numbers = "{2, 2, 24, 40, 3072, 64, 128, 5120, 64, 128, 5120, 64, 128, 3072, 64, 128}"
    assert f"geometry[] = {numbers}" in binding
    assert "0.125f, 0, config_attention_4x24x40x64" in binding
    text = whole.files["kernels/attention_64.cu"]
    assert "#define HEAD 64\n" in text and "#define LAUNCH launch_attention_64\n" in text


@pytest.mark.parametrize("size", [4, 16, 48, 80, 128])
def test_heads_of_other_sizes_have_zeros_behind_them(size: int) -> None:
    _, whole = plans(Heads(2), width=2 * size)
    assert f"#define HEAD {size}\n" in whole.files[f"kernels/attention_{size}.cu"]


def test_scale_and_causality_are_passed_on() -> None:
    _, whole = plans(Heads(4, is_causal=True, scale=0.3))
    binding = next(text for name, text in whole.files.items() if name.endswith(".cpp"))
    assert "0.3f, 1, config_attention_8x24x40x32_causal" in binding
    assert "#define HEAD 32\n" in whole.files["kernels/attention_32.cu"]


@pytest.mark.parametrize(
    ("heads", "how", "more"),
    [
        (2, {}, {"precision": Precision.FP32}),
        (2, {}, {"device": Device.CPU}),
        (2, {}, {"dtype": torch.bfloat16}),
        (2, {"attn_mask": torch.ones(24, 40, dtype=torch.bool)}, {}),
        (1, {}, {"width": 132}),
        (4, {}, {"width": 120}),
    ],
    ids=["fp32", "cpu", "bfloat16", "mask", "large_heads", "heads_that_begin_anywhere"],
)
def test_elsewhere_products_alone(heads: int, how: dict, more: dict) -> None:
    found = plans(Heads(heads, **how), **more)
    assert len(found) == 1 and "attention" not in found[0].skills


def test_heads_of_a_result_lie_where_the_next_product_reads_them() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(128, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x, x, x, need_weights=False)[0].sin()

    _, whole = proposals(graph_of(Layer(), [torch.randn(3, 24, 128)]), Device.CUDA, Precision.TF32)
    assert whole.skills == ("gemm", "attention", "pointwise") and len(whole.steps) == 4
    assert [name for name in whole.tunables if "gemm" in name] == ["gemm_1x72x384x128_nt", "gemm_1x72x128x128_nt"]


def test_a_result_that_is_returned_lies_as_the_graph_says() -> None:
    graph = graph_of(Heads(2), [torch.randn(2, length, 128) for length in (24, 40, 40)])
    (node,) = (node for node in graph.nodes if "attention" in node.op)
    meta = TensorMeta(shape=(2, 2, 24, 64), dtype="float32", strides=(3072, 64, 128, 1))
    nodes = [node.model_copy(update={"outputs": (meta,)}) if one is node else one for one in graph.nodes]
    nodes = nodes[: nodes.index(next(one for one in nodes if one.name == node.name)) + 1]
    alone = graph.model_copy(update={"nodes": tuple(nodes), "outputs": (node.name,)})
    _, whole = proposals(alone, Device.CUDA, Precision.TF32)
    assert whole.skills == ("attention",)
    binding = next(text for name, text in whole.files.items() if name.endswith(".cpp"))
    assert "empty_strided({2, 2, 24, 64}, {3072, 64, 128, 1}" in binding and ", 3072, 64, 128};" in binding


def test_a_batch_of_many_levels_needs_copies() -> None:
    view = StridedView("x", (2, 3, 4, 8, 64), (10_000, 64, 1_000, 512, 1), 0)
    assert batch_levels((2, 3, 4), [view]) is None
    plain = StridedView("x", (2, 3, 4, 8, 64), (6144, 2048, 512, 64, 1), 0)
    assert batch_levels((2, 3, 4), [plain, plain]) == ((1, 0, 0), (24, 512, 512))
    shared = StridedView("y", (2, 3, 4, 8, 64), (0, 0, 512, 64, 1), 0)
    assert batch_levels((2, 3, 4), [plain, shared]) == ((6, 2048, 0), (4, 512, 512))


def test_rows_that_begin_anywhere_are_copied_first() -> None:
    class Sliced(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q[..., 1:], k[..., 1:], v[..., 1:])

    inputs = [torch.randn(2, 3, length, 65) for length in (24, 40, 40)]
    _, whole = proposals(graph_of(Sliced(), inputs), Device.CUDA, Precision.TF32)
    assert whole.skills == ("pointwise", "attention")
