"""Attention as one kernel: a plan beside the products', where the kernel is written for it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from library_cases import Cached, cached
from library_kernels import graph_of
from torch import nn

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import TensorMeta
from cuda_agent.playbook.plan import StridedView
from cuda_agent.playbook.proposal import Proposal, proposals
from cuda_agent.playbook.skills.attention.layout import batch_levels


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
    assert [name for name in whole.files if "attention" in name] == ["kernels/attention_float32_64.cu"]
    binding = next(text for name, text in whole.files.items() if name.endswith(".cpp"))
    # outer and inner batch, group, rows, keys, splits; then the steps of q, k, v, the result and the mask.
    steps = "3072, 64, 64, 128, 5120, 64, 128, 5120, 64, 128, 3072, 64, 64, 128, 0, 0, 0, 0, 0"
    assert f"geometry[] = {{2, 2, 1, 24, 40, 1, {steps}}}" in binding
    assert "0.125f, 0.0f, 0, 0, config_attention_float32_64_4x1x24x40" in binding
    text = whole.files["kernels/attention_float32_64.cu"]
    assert "#define HEAD 64\n" in text and "#define LAUNCH launch_attention_float32_64\n" in text
    assert "#define PLAIN 1\n" in text


@pytest.mark.parametrize("size", [4, 16, 48, 80, 128])
def test_heads_of_other_sizes_have_zeros_behind_them(size: int) -> None:
    _, whole = plans(Heads(2), width=2 * size)
    assert f"#define HEAD {size}\n" in whole.files[f"kernels/attention_float32_{size}.cu"]


def test_scale_and_causality_are_passed_on() -> None:
    _, whole = plans(Heads(4, is_causal=True, scale=0.3))
    binding = next(text for name, text in whole.files.items() if name.endswith(".cpp"))
    assert "0.3f, 0.0f, 1, 0, config_attention_float32_32_8x1x24x40_causal" in binding
    assert "#define HEAD 32\n" in whole.files["kernels/attention_float32_32.cu"]


@pytest.mark.parametrize(
    ("heads", "how", "more"),
    [
        (2, {}, {"precision": Precision.FP32}),
        (2, {}, {"device": Device.CPU}),
        (2, {}, {"dtype": torch.bfloat16, "device": Device.CPU}),
        (1, {}, {"width": 132}),
        (4, {}, {"width": 120}),
    ],
    ids=["fp32", "cpu", "bfloat16", "large_heads", "heads_that_begin_anywhere"],
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
    assert (
        "empty_strided({2, 2, 24, 64}, {3072, 64, 128, 1}" in binding
        and ", 3072, 64, 64, 128, 0, 0, 0, 0, 0};" in binding
    )


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


def half_plan(module: nn.Module, inputs: list[torch.Tensor]) -> tuple[Proposal, str]:
    """The only plan, and the call of the attention in its binding."""
    (found,) = proposals(graph_of(module, inputs), Device.CUDA, Precision.FP32)
    binding = next(text for name, text in found.files.items() if name.endswith(".cpp"))
    return found, binding[binding.index("geometry[]") :][:900]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_a_kernel_of_its_own(dtype: torch.dtype) -> None:
    inputs = [torch.randn(2, length, 128, dtype=dtype) for length in (24, 40, 40)]
    found, call = half_plan(Heads(2, is_causal=True), inputs)
    assert found.skills == ("attention", "pointwise")
    # outer and inner batch, group, rows, keys, splits; q, k, v, result, no mask.
    steps = "3072, 64, 64, 128, 5120, 64, 128, 5120, 64, 128, 3072, 64, 64, 128, 0, 0, 0, 0, 0"
    assert f"{{2, 2, 1, 24, 40, 64, {steps}}}" in call and "nullptr" in call and "0.125f, 0.0f, 1, 0, config_" in call
    name = str(dtype).removeprefix("torch.")
    text = found.files[f"kernels/attention_{name}_64.cu"]
    assert f"#define LAUNCH launch_attention_{name}_64\n" in text and "kernels/attention_library.cu" in found.files


def test_a_cache_is_read_where_it_lies() -> None:
    module, inputs = cached(torch.bfloat16)
    found, call = half_plan(module, inputs)
    assert "#define JOINED 1\n" in found.files["kernels/attention_bfloat16_64_joined.cu"]
    # The steps of q, the cache and the result, no mask; then the cache's length, and the steps of what is new.
    steps = "768, 256, 64, 0, 25600, 12800, 64, 25600, 12800, 64, 512, 256, 64, 512, 0, 0, 0, 0, 0"
    assert f"geometry[] = {{3, 2, 4, 1, 201, 64, {steps}, 200, 128, 64, 0, 768, 64, 0}}" in call
    joined, _ = half_plan(Cached(whole=True).bfloat16().eval(), inputs)
    assert "kernels/attention_bfloat16_64.cu" in joined.files, "a copy that is returned is there anyway"
    wide, _ = half_plan(module, [torch.randn(3, 40, 96, dtype=torch.bfloat16), *inputs[1:]])
    assert "kernels/attention_bfloat16_64.cu" in wide.files, "many rows: the library's engines"


def test_a_result_under_another_shape_is_no_copy() -> None:
    class Reshaped(nn.Module):
        def __init__(self, order: tuple[int, ...]) -> None:
            super().__init__()
            self.order = order

        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
            out = F.scaled_dot_product_attention(q, k, v)
            forms = (out, out.reshape(2, 4 * 24, 64), out.reshape(8 * 24, 64))
            return tuple(forms[one] for one in self.order)

    inputs = [torch.randn(2, 4, length, 64, dtype=torch.bfloat16) for length in (24, 40, 40)]
    for order, copies in (((1,), 0), ((0, 1), 1), ((1, 0), 1), ((1, 2), 1), ((2, 1, 0), 1)):
        found, _ = half_plan(Reshaped(order), inputs)
        assert [kernel.skill for kernel in found.plan.kernels] == ["attention"] + ["pointwise"] * copies, order
        binding = next(text for name, text in found.files.items() if name.endswith(".cpp"))
        shape = ("{2, 4, 24, 64}", "{2, 96, 64}", "{192, 64}")[order[0]]
        assert f"scaled_dot_product_attention = torch::empty({shape}" in binding


class Shared(nn.Module):
    """Query heads that share keys and values: by the operator's flag, or repeated as model libraries do."""

    def __init__(self, by_flag: bool) -> None:
        super().__init__()
        self.by_flag = by_flag

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not self.by_flag:
            b, heads, keys, width = k.shape
            k, v = (x[:, :, None].expand(b, heads, 4, keys, width).reshape(b, heads * 4, keys, width) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=self.by_flag)


@pytest.mark.parametrize("by_flag", [True, False])
@pytest.mark.parametrize(("dtype", "kind"), [(torch.bfloat16, 1), (torch.bool, 3)])
def test_shared_heads_are_read_once(by_flag: bool, dtype: torch.dtype, kind: int) -> None:
    q, k, v = (torch.randn(3, heads, length, 64, dtype=torch.bfloat16) for heads, length in ((8, 5), (2, 48), (2, 48)))
    found, call = half_plan(Shared(by_flag), [q, k, v, torch.ones(3, 1, 5, 48).to(dtype)])
    assert found.skills == (("attention",) if by_flag else ("algebra", "attention"))
    # Between query heads of one group, and from group to group; the mask is the same for every head.
    steps = "2560, 1280, 320, 64, 6144, 3072, 64, 6144, 3072, 64, 2560, 1280, 320, 64, 240, 0, 0, 48, 1"
    assert f"{{3, 2, 4, 5, 48, 64, {steps}}}" in call and f"0.0f, 0, {kind}, config_" in call


@pytest.mark.parametrize("by_flag", [True, False])
def test_shared_heads_and_masks_in_float32(by_flag: bool) -> None:
    q, k, v = (torch.randn(3, heads, length, 64) for heads, length in ((8, 5), (2, 48), (2, 48)))
    graph = graph_of(Shared(by_flag), [q, k, v, torch.zeros(3, 1, 5, 48)])
    whole = proposals(graph, Device.CUDA, Precision.TF32)[-1]
    text = whole.files["kernels/attention_float32_64_general.cu"]
    assert whole.skills[-1] == "attention" and "pointwise" not in whole.skills and "#define PLAIN 0\n" in text


def test_values_of_another_width_and_masks_of_one_row() -> None:
    class Latent(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    q, k = (torch.randn(2, 4, length, 192, dtype=torch.bfloat16) for length in (16, 32))
    found, call = half_plan(Latent(), [q, k, torch.randn(2, 4, 32, 128).bfloat16(), torch.zeros(2, 1, 1, 32)])
    assert "kernels/attention_bfloat16_192x128.cu" in found.files
    assert "32, 0, 0, 0, 1}" in call and "0.0f, 0, 2, config_" in call


def test_heads_too_wide_for_the_kernel_are_products() -> None:
    inputs = [torch.randn(1, 2, length, 320, dtype=torch.bfloat16) for length in (16, 32, 32)]

    class Wide(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v)

    (found,) = proposals(graph_of(Wide(), inputs), Device.CUDA, Precision.FP32)
    assert "attention" not in found.skills


class Written(nn.Module):
    """Attention as model libraries write it without the operator: softmax in float32 between two products."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2)
        if self.how == "after":
            scores = (scores + mask) * 0.125
        elif self.how == "whole_quotients":
            scores = torch.div(scores, 8.0, rounding_mode="floor") + mask
        elif self.how == "whole_scores":
            scores = scores.to(torch.int32).to(q.dtype) + mask
        elif self.how == "capped":
            scores = torch.tanh(scores * 0.125 / 50.0) * 50.0 + mask
        else:
            scores = scores / 8.0 + mask + 0.5 * mask
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        y = weights @ v
        return y + weights.sum() if self.how == "returned" else y


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_written_as_products_is_recognised(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(3, 4, length, 64, dtype=torch.bfloat16) for length in (24, 48, 48))
    graph = graph_of(Written("usual"), [q, k, v, torch.randn(3, 1, 24, 48).to(dtype)])
    (found,) = proposals(graph, Device.CUDA, Precision.FP32)
    assert found.skills == ("algebra", "pointwise", "attention")
    binding = next(text for name, text in found.files.items() if name.endswith(".cpp"))
    assert f"0.125f, 0.0f, 0, {1 if dtype is torch.bfloat16 else 2}, config_" in binding


@pytest.mark.parametrize("how", ["after", "returned", "whole_quotients", "whole_scores"])
def test_other_products_around_a_softmax_stay_as_they_are(how: str) -> None:
    q, k, v = (torch.randn(3, 4, length, 64, dtype=torch.bfloat16) for length in (24, 48, 48))
    graph = graph_of(Written(how), [q, k, v, torch.randn(3, 1, 24, 48).bfloat16()])
    assert all("attention" not in found.skills for found in proposals(graph, Device.CUDA, Precision.FP32))


def test_a_soft_cap_is_part_of_the_kernel() -> None:
    q, k, v = (torch.randn(3, 4, length, 64, dtype=torch.bfloat16) for length in (24, 48, 48))
    graph = graph_of(Written("capped"), [q, k, v, torch.randn(3, 1, 24, 48).bfloat16()])
    (found,) = proposals(graph, Device.CUDA, Precision.FP32)
    binding = next(text for name, text in found.files.items() if name.endswith(".cpp"))
    assert found.skills == ("algebra", "attention") and "0.125f, 50.0f, 0, 1, config_" in binding
