"""cuBLAS and cuDNN launchers on a GPU: every config against float64, then whole proposals."""

from __future__ import annotations

import ctypes

import pytest
import torch
import torch.nn.functional as F
from library_cases import CASES, HALF_CASES, LAST_CASES, exact, relative_error
from library_kernels import graph_of, library, pointers, results_of_proposal

from cuda_agent.core.enums import Device, Precision
from cuda_agent.playbook.skills.convolution.skill import CONFIGS as CONVOLUTION_CONFIGS
from cuda_agent.playbook.skills.convolution.skill import geometry_numbers
from cuda_agent.playbook.skills.gemm.skill import CONFIGS as GEMM_CONFIGS
from cuda_agent.playbook.skills.grouped.skill import CONFIGS as GROUPED_CONFIGS
from cuda_agent.playbook.skills.shared.geometry import read
from cuda_agent.playbook.state import State

pytestmark = pytest.mark.gpu

NOT_AVAILABLE = -1
BOUNDS = {Precision.FP32: 3e-6, Precision.TF32: 1e-3}


@pytest.fixture(scope="module")
def gemm(tmp_path_factory):
    return library(tmp_path_factory.mktemp("gemm"), "shared", "gemm")


@pytest.fixture(scope="module")
def convolution(tmp_path_factory):
    return library(tmp_path_factory.mktemp("convolution"), "convolution", "convolution")


def current_stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def bound(dtype, precision):
    return BOUNDS[precision] if dtype == torch.float32 else {torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.TF32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_gemm_configs(gemm, dtype, precision, transposed):
    codes = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
    worked = 0
    for (outer, batch, m, n, k), activation, with_bias in (
        ((1, 1, 512, 768, 256), 1, True),
        ((1, 1, 512, 768, 256), 0, False),
        ((1, 1, 33, 17, 129), 2, True),
        ((2, 3, 64, 40, 32), 0, False),
        ((2, 3, 64, 40, 32), 1, True),
    ):
        a, b = torch.randn(outer, batch, m, k), torch.randn(outer, batch, k, n)
        a, b = a.to("cuda", dtype), b.to("cuda", dtype)
        bias = torch.randn(n).to("cuda", dtype) if with_bias else None
        truth = a.double() @ b.double() + (bias.double() if with_bias else 0)
        truth = F.relu(truth) if activation == 1 else F.gelu(truth, approximate="tanh") if activation == 2 else truth
        left = a.transpose(-1, -2).contiguous() if transposed[0] else a
        right = b.transpose(-1, -2).contiguous() if transposed[1] else b
        numbers = [m, n, k, batch, m if transposed[0] else k, k if transposed[1] else n, n, m * k, k * n, m * n]
        numbers += [outer, batch * m * k, batch * k * n, batch * m * n]
        flags = [*transposed, codes[dtype], int(precision is Precision.TF32), activation]
        for config in range(GEMM_CONFIGS):
            out = torch.full((outer, batch, m, n), float("nan"), dtype=dtype, device="cuda")
            status = gemm.launch_gemm(
                *pointers(out, left, right, bias),
                *map(ctypes.c_longlong, numbers),
                *map(ctypes.c_int, flags),
                ctypes.c_int(config),
                current_stream(),
            )
            torch.cuda.synchronize()
            assert status in (0, NOT_AVAILABLE), (status, config, numbers)
            assert status == 0 or config > 1, (config, numbers, flags)
            if status == 0:
                worked += 1
                assert relative_error(out, truth) < bound(dtype, precision), (config, numbers, flags)
    assert worked > 10


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.TF32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convolution_configs(convolution, dtype, precision):
    module, inputs = CASES["convolutions"](dtype)
    graph = graph_of(module, inputs)
    state = State(graph, Device.CUDA, precision)
    worked = 0
    for call in [found for node in graph.nodes if (found := read(state, node)) is not None]:
        worked += check_convolution(convolution, call, dtype, precision)
    assert worked > 40


def check_convolution(kernels, call, dtype, precision):
    """All configs of one call, with and without ReLU. Returns how many ran."""
    dims = len(call.axes)
    x = torch.randn(call.batch, call.in_channels, *(axis.size for axis in call.axes)).to("cuda", dtype)
    rows, columns = call.out_channels, call.in_channels // call.groups
    if call.transposed:
        rows, columns = call.in_channels, call.out_channels // call.groups
    weight = torch.randn(rows, columns, *(axis.filter for axis in call.axes)).to("cuda", dtype)
    bias = torch.randn(call.out_channels).to("cuda", dtype) if call.bias else None
    settings = {name: [getattr(axis, name) for axis in call.axes] for name in ("stride", "dilation")}
    exact_x = x.double().cpu()
    if not call.transposed:
        pads = [side for axis in reversed(call.axes) for side in (axis.before, axis.after)]
        exact_x = F.pad(exact_x, pads)
        function, more = (F.conv1d, F.conv2d, F.conv3d)[dims - 1], {}
    else:
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
        more = {"padding": [a.before for a in call.axes], "output_padding": [a.extra for a in call.axes]}
    wide_bias = bias.double().cpu() if bias is not None else None
    plain = function(exact_x, weight.double().cpu(), wide_bias, groups=call.groups, **settings, **more)
    ran = 0
    for relu in (False, True):
        truth = F.relu(plain) if relu else plain
        numbers = geometry_numbers(call, precision, relu)
        geometry = (ctypes.c_longlong * len(numbers))(*numbers)
        for config in range(CONVOLUTION_CONFIGS):
            size = ctypes.c_longlong(0)
            status = kernels.convolution_workspace(geometry, ctypes.c_int(config), ctypes.byref(size))
            assert status in (0, NOT_AVAILABLE) and (status == 0 or config > 0), (status, config, numbers)
            if status != 0:
                continue
            workspace = torch.empty(max(size.value, 1), dtype=torch.uint8, device="cuda")
            out = torch.full(truth.shape, float("nan"), dtype=dtype, device="cuda")
            status = kernels.launch_convolution(
                *pointers(out, x, weight, bias),
                geometry,
                *pointers(workspace),
                ctypes.c_int(config),
                current_stream(),
            )
            torch.cuda.synchronize()
            assert status == 0, (status, config, numbers)
            # Winograd engines of the full policy lose a digit.
            limit = 3 * bound(dtype, precision) if dtype == torch.float32 else bound(dtype, precision)
            assert relative_error(out, truth) < limit, (config, numbers)
            ran += 1
    return ran


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_proposal_computes_the_module(name, dtype, tmp_path):
    truths = exact(*CASES[name](getattr(torch, dtype)))
    found = results_of_proposal(name, dtype, Device.CUDA, tmp_path)
    for index, (one, truth) in enumerate(zip(found, truths, strict=True)):
        assert one.shape == truth.shape and one.dtype == getattr(torch, dtype)
        assert relative_error(one, truth) < (2e-2 if dtype == "bfloat16" else 2e-3), index


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", LAST_CASES)
def test_channels_last_proposal_computes_the_module(name, dtype, tmp_path):
    truths = exact(*LAST_CASES[name](getattr(torch, dtype)))
    found = results_of_proposal(name, dtype, Device.CUDA, tmp_path, channels_last=True)
    for one, truth in zip(found, truths, strict=True):
        assert one.is_contiguous() and one.shape == truth.shape
        assert relative_error(one, truth) < (2e-2 if dtype == "bfloat16" else 2e-3)


@pytest.mark.parametrize("name", HALF_CASES)
def test_proposal_computes_a_module_of_half_precision(name, tmp_path):
    module, inputs = HALF_CASES[name](torch.bfloat16)
    found, *_ = results_of_proposal(name, "bfloat16", Device.CUDA, tmp_path)
    assert relative_error(found, module.exact(*inputs).detach()) < 1e-2


@pytest.mark.parametrize(
    ("sizes", "columns", "depth"), [((300, 0, 1, 129), 200, 136), ((1,) * 70, 128, 64), ((5,), 8, 8)]
)
def test_grouped_configs(tmp_path_factory, sizes, columns, depth):
    kernels = library(tmp_path_factory.mktemp("grouped"), "grouped", "grouped")
    a = torch.randn(sum(sizes), depth + 8, device="cuda").bfloat16()[:, :depth]
    b = torch.randn(len(sizes), columns, depth, device="cuda").bfloat16()
    ends = torch.tensor(sizes, device="cuda").cumsum(0).int()
    truth = torch.cat([x.double() @ w.double().t() for x, w in zip(a.split(list(sizes)), b, strict=True)])
    numbers = [sum(sizes), columns, depth, len(sizes), depth + 8, depth, columns * depth]
    for config in range(GROUPED_CONFIGS):
        out = torch.full((sum(sizes), columns), float("nan"), device="cuda", dtype=torch.bfloat16)
        given = (ctypes.c_longlong * len(numbers))(*numbers)
        assert kernels.launch_grouped(*pointers(out, a, b, ends), given, config, None) == 0
        torch.cuda.synchronize()
        assert relative_error(out, truth) < 5e-3, config
