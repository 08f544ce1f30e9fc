"""What the planner fuses, what it keeps apart, what it refuses. No compiler: steps and texts only."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import NotCovered
from cuda_agent.core.graph import Graph, GraphInput, Node, Ref, TensorMeta, ValueKind
from cuda_agent.playbook import ir, kernel, propose
from cuda_agent.playbook.plan import Options, Step
from cuda_agent.playbook.planner import plan
from playbook_cases import FOLDED, POINTWISE, REDUCTIONS, WINDOWS, gate, residual_norm, substitute
from playbook_harness import graph_of


def steps_of(function: Any, inputs: list[Any], device: Device = Device.CUDA) -> tuple[Step, ...]:
    return plan(graph_of(function, inputs), device, Precision.FP32)[0]


def test_the_steps_of_a_loop_share_a_kernel() -> None:
    """Also where their inputs lie at another place of the same buffer."""

    def loop(x: Any, state: Any) -> Any:
        for t in range(x.shape[1]):
            state = torch.tanh(state.cumsum(-1) + x[:, t])
        return state

    steps = steps_of(loop, [torch.randn(4, 12, 32), torch.randn(4, 32)])
    again = [step for step in steps if step.shifts]
    assert len({path for step in steps for path in step.files if path.endswith(".cu")}) <= 4 < 12 <= len(steps)
    assert len(again) >= 8 and all(shift % 16 == 0 for step in again for shift in step.shifts.values())


def test_zeros_of_another_sign_have_a_kernel_of_their_own() -> None:
    def chain(x: Any) -> Any:
        for zero in (0.0, 0.0, -0.0, 0.0, -0.0):
            x = torch.where(x > 1, x, zero).cumsum(-1)
        return x

    steps = steps_of(chain, [torch.randn(4, 64)])
    assert [step.name == steps[1].name for step in steps] == [False, True, False, True, False]


def test_a_place_with_another_alignment_has_a_kernel_of_its_own() -> None:

    def loop(x: Any, state: Any) -> Any:
        for k in (0, 1, 4, 5):
            state = state.cumsum(-1) + x[:, k : k + 32]
        return state

    steps = steps_of(loop, [torch.randn(4, 64), torch.randn(4, 32)])
    shifts = [step.shifts.get("args_0", 0) for step in steps]
    assert len({step.name for step in steps}) == 2 < len(steps) == 4 and shifts == [0, 0, 16, 16]


def hand_made(op: str) -> Graph:
    """y = op(x), without torch."""
    meta = TensorMeta(shape=(8, 16), dtype="float32", strides=(16, 1))
    return Graph(
        inputs=(GraphInput(name="x", kind=ValueKind.INPUT, meta=meta, position=0),),
        nodes=(Node(name="y", op=op, args=(Ref(ref="x"),), outputs=(meta,)),),
        outputs=("y",),
        forward_parameters=("x",),
    )


@pytest.mark.parametrize("device", list(Device))
@pytest.mark.parametrize("name", list(POINTWISE))
def test_element_wise_chains_are_one_kernel_for_each_shape(name: str, device: Device) -> None:
    steps = steps_of(*POINTWISE[name], device)
    assert {step.skill for step in steps} == {"pointwise"}
    shapes = {buffer.meta.shape for step in steps for buffer in step.outputs}
    assert len(steps) <= len(shapes)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("softmax", 1),
        ("layer_norm", 1),
        ("residual_rms_norm", 1),
        ("group_norm", 1),
        ("extremes", 1),
        ("z_loss", 1),
        ("standardise", 1),
        ("softmax_channels", 1),
        ("mean_var_middle", 1),
        ("cross_entropy", 2),
        ("two_frames", 2),
    ],
)
@pytest.mark.parametrize("device", list(Device))
def test_number_of_kernels(name: str, count: int, device: Device) -> None:
    assert len(steps_of(*REDUCTIONS[name], device)) == count


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("max_pool", 1),
        ("max_pool_many_taps", 2),
        ("max_pool_twice", 2),
        ("both_pools", 1),
        ("local_contrast", 2),
        ("avg_pool_ceil", 1),
        ("depthwise_glu", 1),
        ("depthwise_multiple", 1),
        ("depthwise_channels_last", 1),
    ],
)
@pytest.mark.parametrize("device", list(Device))
def test_windows_take_what_is_before_and_after_along(name: str, count: int, device: Device) -> None:
    steps = steps_of(*WINDOWS[name], device)
    assert [step.skill for step in steps] == ["stencil"] * count


@pytest.mark.parametrize("name", ["mean_of_max_pool", "std_of_max_pool", "sum_of_avg_pool", "max_of_depthwise"])
@pytest.mark.parametrize("device", list(Device))
def test_small_windows_that_only_a_reduction_reads_are_written_out_in_it(name: str, device: Device) -> None:
    (step,) = steps_of(*WINDOWS[name], device)
    assert step.skill in ("colreduce", "rowreduce")


def test_wide_windows_side_by_side_are_rows() -> None:
    def pooled(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(x, 4).relu()

    (step,) = steps_of(pooled, [torch.randn(2, 3, 64, 64)])
    assert step.skill == "rowreduce"


@pytest.mark.parametrize("name", list(WINDOWS))
def test_windows_can_be_written_out(name: str) -> None:
    """As a plan of their own; where nothing is small enough, it is the default one."""
    graph = graph_of(*WINDOWS[name])
    default = plan(graph, Device.CUDA, Precision.FP32)[0]
    other = plan(graph, Device.CUDA, Precision.FP32, Options(written_out=True))[0]
    assert len(other) <= 2 * len(default)
    few = name in ("max_pool_1d", "avg_pool_divisor", "max_pool_bf16", "avg_pool", "depthwise_odd", "mean_of_max_pool")
    assert not few or "stencil" not in {step.skill for step in other}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(torch.nn.functional.max_pool2d(x, 2), 1),  # read twice
        lambda x: torch.nn.functional.max_pool2d(x, 3, 1, 1).mean(1),  # each element in nine windows
        lambda x: torch.nn.functional.max_pool2d(x, 4).mean(1),  # sixteen taps
    ],
)
def test_other_windows_before_a_reduction_go_to_memory(function: Any) -> None:
    assert steps_of(function, [torch.randn(2, 24, 16, 16)])[0].skill == "stencil"


@pytest.mark.parametrize(
    "name", sorted({*FOLDED} - {"fold_half", "fold_many_taps", "deviation_of_unfold", "pool_of_fold"})
)
@pytest.mark.parametrize("device", list(Device))
def test_a_fold_is_gathered_with_what_is_around_it(name: str, device: Device) -> None:
    (step,) = steps_of(*FOLDED[name], device)
    assert step.skill == "pointwise"


def test_a_fold_of_many_taps_goes_row_by_row() -> None:
    first, second = steps_of(*FOLDED["fold_many_taps"])
    assert "args_0" in first.inputs and "args_0" not in second.inputs


def test_a_fold_reads_what_meets_in_an_element_and_divides_no_position() -> None:
    """Four of sixteen taps, each within one period of the stride."""
    (step,) = steps_of(*FOLDED["fold"])
    text = step.files[f"kernels/{step.name}.cu"]
    assert text.count("args_0[") == 4 and not re.search(r"\dLL", text) and "WIDTH = 2" in text


@pytest.mark.parametrize(("name", "skill"), [("unfold_crooked", "pointwise"), ("deviation_of_unfold", "colreduce")])
def test_results_of_sliding_windows_are_vectors_wherever_the_windows_begin(name: str, skill: str) -> None:
    (step,) = steps_of(*FOLDED[name])
    text = step.files[f"kernels/{step.name}.cu"]
    assert step.skill == skill and "WIDTH = 4" in text and "load_vector" not in text
    assert step.inputs == ("args_0",), "no table of indices"


@pytest.mark.parametrize(("batch", "index"), [(1, "int"), (700, "long long")])
def test_positions_of_a_large_fold_have_64_bits(batch: int, index: str) -> None:
    shapes = {"x": (batch, 1024, 56 * 56), "y": (batch, 64, 112, 112)}
    x, y = (TensorMeta(shape=s, dtype="float32", strides=ir.contiguous(s)) for s in shapes.values())
    sizes: Any = [[112, 112], [4, 4], [1, 1], [1, 1], [2, 2]]
    graph = Graph(
        inputs=(GraphInput(name="x", kind=ValueKind.INPUT, meta=x, position=0),),
        nodes=(Node(name="y", op="aten.col2im.default", args=(Ref(ref="x"), *sizes), outputs=(y,)),),
        outputs=("y",),
    )
    (step,) = plan(graph, Device.CUDA, Precision.FP32)[0]
    assert f"using Index = {index};" in step.files[f"kernels/{step.name}.cu"]


def test_a_sigmoid_before_a_window_is_computed_once_a_position() -> None:
    (step,) = steps_of(*WINDOWS["depthwise_glu"])
    text = step.files[f"kernels/{step.name}.cu"]
    assert text.index("f_sigmoid") < text.index("__syncthreads") and text.count("f_sigmoid") == 1


@pytest.mark.parametrize(
    ("layer", "skill"),
    [
        (torch.nn.Conv1d(8, 8, 15, groups=8), "stencil"),
        (torch.nn.Conv1d(8, 8, 65, groups=8), "convolution"),
        (torch.nn.Conv1d(8, 8, 15, groups=4), "convolution"),
    ],
)
def test_few_taps_of_each_channel_alone_are_no_library_call(layer: Any, skill: str) -> None:
    proposal = propose(graph_of(layer, [torch.randn(2, 8, 80)]), Device.CUDA, Precision.FP32)
    assert proposal.skills == (skill,)


TILED = [name for name in POINTWISE if name.startswith(("tiled", "to_n", "gated"))]


@pytest.mark.parametrize("name", TILED)
def test_operands_in_another_order_are_read_through_tiles(name: str) -> None:
    (step,) = steps_of(*POINTWISE[name])
    assert "__shared__" in step.files[f"kernels/{step.name}.cu"]


def test_operands_in_the_same_order_are_not() -> None:
    (step,) = steps_of(*POINTWISE["channel"])
    assert "__shared__" not in step.files[f"kernels/{step.name}.cu"]


def test_the_residual_sum_leaves_with_the_norm() -> None:
    (step,) = steps_of(residual_norm, REDUCTIONS["residual_rms_norm"][1])
    assert len(step.outputs) == 2


def normed_windows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.conv2d(x, weight, groups=24).permute(0, 2, 3, 1), (24,))


def test_a_norm_behind_windows_is_one_kernel() -> None:
    steps = steps_of(normed_windows, [torch.randn(2, 24, 18, 18), torch.randn(24, 1, 3, 3)])
    assert [step.skill for step in steps] == ["stencil", "colreduce"]


def turned_halves(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def rotated(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Attention scores of normed and rotated heads, of which the keys have fewer."""
    q, k = (F.rms_norm(x.view(2, 128, -1, 64), (64,)).transpose(1, 2) for x in (q, k))
    q, k = (x * cos + turned_halves(x) * sin for x in (q, k))
    return q @ k.repeat_interleave(2, 1).transpose(2, 3)


def test_values_whose_elements_lie_otherwise_have_kernels_of_their_own() -> None:
    inputs = [torch.randn(2, 128, 512), torch.randn(2, 128, 256), torch.randn(128, 64), torch.randn(128, 64)]
    steps = [step for step in steps_of(rotated, inputs) if step.skill in ("rowreduce", "pointwise")]
    assert all(len(step.outputs) == 1 for step in steps)


def test_copies_of_an_element_leave_its_neighbours_contiguous() -> None:
    def upsampled(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2.0).amax(1)

    assert [step.skill for step in steps_of(upsampled, [torch.randn(2, 64, 48, 48)])] == ["colreduce"]


def test_results_along_the_reduced_axis_are_written_through_tiles() -> None:
    def is_tiled(name: str) -> bool:
        (step,) = steps_of(*REDUCTIONS[name])
        return any("turned0[across]" in text for text in step.files.values())

    assert is_tiled("turned") and is_tiled("turned_too") and not is_tiled("softmax_channels")


def test_several_sweeps_share_one_kernel() -> None:
    (step,) = steps_of(gate, REDUCTIONS["moe_gate"][1])
    assert step.skill == "rowreduce"


def test_layout_decides_between_rows_and_columns() -> None:
    assert steps_of(*REDUCTIONS["softmax"])[0].skill == "rowreduce"
    assert steps_of(*REDUCTIONS["softmax_channels"])[0].skill == "colreduce"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.argmax(-1),
        lambda x: x.min(-1),
        lambda x: (x * 2).argmin(-1, keepdim=True),
        lambda x: (x.argmax(0), x.amax(0)),
        lambda x: (x.argmax(-1), x.logsumexp(-1)),
    ],
)
def test_an_extreme_and_its_place_come_from_one_sweep(function: Any) -> None:
    (step,) = steps_of(function, [torch.randn(64, 1 << 18)])
    (text,) = (text for name, text in step.files.items() if name.endswith(".cu"))
    assert re.search(r"take_(max|min)\(state", text) and "State1" not in text
    assert not re.search(r"b\d+\[1\].*\n.*b\d+\[j\]", text), "a lane of its own holds one value"


def test_a_product_under_a_softmax_is_rounded_in_both_sweeps() -> None:
    (step,) = plan(graph_of(*REDUCTIONS["softmax_of_products"]), Device.CUDA, Precision.TF32)[0]
    text = next(text for path, text in step.files.items() if path.endswith(".cu"))
    assert text.count("f_product(") == 2 and "v0 * v1" not in text


@pytest.mark.parametrize(("length", "parts"), [(4096, True), (2047, False)])
def test_long_columns_are_summed_in_parts(length: int, parts: bool) -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        return x.sum(0)

    (step,) = plan(graph_of(total, [torch.randn(length, 64)]), Device.CUDA, Precision.TF32)[0]
    text = next(text for path, text in step.files.items() if path.endswith(".cu"))
    assert step.skill == "colreduce" and ("State0 part0[WIDTH];" in text) == parts


def test_what_nobody_covers_is_named() -> None:
    with pytest.raises(NotCovered, match=r"aten\.sort\.default"):
        propose(hand_made("aten.sort.default"), Device.CPU, Precision.FP32)


def test_what_nobody_covers_is_named_with_its_line() -> None:
    class Determinant(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.det(x * 2.0)

    with pytest.raises(
        NotCovered, match=r"linalg_det\.default \(no kernel, line \d+: return torch\.linalg\.det\(x \* 2"
    ):
        propose(graph_of(Determinant(), [torch.randn(4, 4)]), Device.CPU, Precision.FP32)


@pytest.mark.parametrize("fused", [True, False])
def test_empty_values_within_a_module_have_no_kernel(fused: bool) -> None:
    def rotated(x: torch.Tensor) -> torch.Tensor:
        turned, rest = x[..., :8] * 2.0, x[..., 8:]
        return torch.cat((turned, rest + 1.0), -1)

    steps, _ = plan(graph_of(rotated, [torch.randn(4, 8)]), Device.CUDA, Precision.FP32, Options(fused=fused))
    assert len(steps) == (1 if fused else 2)


def test_an_empty_result_is_not_covered() -> None:
    with pytest.raises(NotCovered, match="empty"):
        steps_of(lambda x: x[:, 8:] + 1.0, [torch.randn(4, 8)])


@pytest.mark.parametrize("device", list(Device))
def test_proposal_holds_all_files_and_settings(device: Device) -> None:
    proposal = propose(hand_made("aten.gelu.default"), device, Precision.FP32)
    suffix = "cu" if device is Device.CUDA else "cpp"
    assert {"model_new.py", "kernels/fused_binding.cpp", f"kernels/pointwise_gelu.{suffix}"} <= set(proposal.files)
    assert proposal.config_line(None) in proposal.files["model_new.py"]
    assert proposal.config_line({"pointwise_gelu": 1}) == 'CONFIG = {"pointwise_gelu": 1}'
    assert proposal.files["model_new.py"].count("CONFIG") == 2
    compile(proposal.files["model_new.py"], "model_new.py", "exec")


def test_the_same_graph_gives_the_same_files() -> None:
    first, second = (propose(hand_made("aten.silu.default"), Device.CUDA, Precision.FP32) for _ in range(2))
    assert dict(first.files) == dict(second.files)


@pytest.mark.parametrize("device", list(Device))
def test_rows_that_share_a_large_operand_follow_each_other(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask beyond the cache is read once, not once a head; one that fits leaves the order of memory."""
    inputs = [torch.randn(3, 40, 1024), torch.randn(40, 1024)]

    def rows() -> list[str]:
        (step,) = steps_of(lambda x, mask: torch.softmax(x + mask, -1), inputs, device)
        return re.findall(r"row % (\d+)", "".join(step.files.values()))

    assert rows() == ["40"]
    monkeypatch.setattr(kernel, "_BEYOND_CACHE", 1000)
    assert rows() == ["3"]


@pytest.mark.parametrize("device", list(Device))
def test_what_doubles_with_every_step_stays_small(device: Device) -> None:
    steps = steps_of(substitute, [torch.randn(3, 40, 40)], device)
    assert max(len(text) for step in steps for text in step.files.values()) < 200_000
    assert len(steps) < 200


@pytest.mark.parametrize("times", [2, 16])
def test_a_norm_that_is_spread_is_computed_once(times: int) -> None:
    def spread(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1).repeat(times, 1)

    first, *others = steps_of(spread, [torch.randn(9, 40)])
    assert [buffer.meta.shape for buffer in first.outputs] == ([(9, 40)] if times == 16 else [(9,), (9,)])
    assert len(others) == 1


@pytest.mark.parametrize("device", list(Device))
@pytest.mark.parametrize("name", [name for name in REDUCTIONS if name.startswith("cat_")])
def test_parameters_are_called_in_the_order_they_are_declared_in(name: str, device: Device) -> None:
    for step in steps_of(*REDUCTIONS[name], device):
        source = next(text for path, text in step.files.items() if path.endswith((".cpp", ".cu")))
        declared = step.declaration.replace(f"{step.name}_scratch", "scratch").split("(")[1].split(")")[0]
        defined = source.split(f"void launch_{step.name}(")[1].split(")")[0]
        assert [p.split()[-1] for p in declared.split(",")] == [p.split()[-1] for p in defined.split(",")]
