"""Recurrent layers on a GPU: the playbook's program of all kinds, and the kernel's every setting at usual sizes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch
from library_kernels import LIBRARIES, compiled, pointers
from torch import nn

from cuda_agent.core.enums import Device
from cuda_agent.playbook.codegen import kernel_files
from cuda_agent.playbook.skills.recurrent.skill import CONFIGS, STEPWISE, kernel, steps_kernel
from cuda_agent.playbook.skills.shared.operands import product_files
from playbook_recurrent import check_networks

pytestmark = pytest.mark.gpu


def test_every_kind_agrees_with_torch(tmp_path: Path) -> None:
    check_networks(Device.CUDA, tmp_path)


LAYERS = [(0, 256, 10, 50, 1), (0, 512, 64, 30, 1), (0, 1024, 33, 20, 2), (1, 640, 100, 20, 2), (2, 2048, 7, 20, 1)]
SIZES = ("kind", "hidden", "batch", "steps", "directions")


class Layer:
    """One of torch's layers, what our launchers are given of it, and what it is in float64."""

    def __init__(self, kind: int, hidden: int, batch: int, steps: int, directions: int) -> None:
        torch.manual_seed(0)
        module = (nn.LSTM, nn.GRU, nn.RNN)[kind](64, hidden, bidirectional=directions == 2).cuda().requires_grad_(False)
        x = torch.randn(steps, batch, 64, device="cuda")
        self._exact = module.double()(x.double())[0]
        module.float()
        named, ends = dict(module.named_parameters()), ("", "_reverse")[:directions]

        def joint(name: str) -> torch.Tensor:
            return torch.cat([named[f"{name}_l0{end}"] for end in ends])

        given = (x.double() @ joint("weight_ih").double().T + joint("bias_ih").double()).float().contiguous()
        self._given = given, joint("weight_hh"), joint("bias_hh")
        self._last = torch.empty(directions, batch, hidden, device="cuda")
        widths = given.shape[2], self._exact.shape[2]
        numbers = [steps, batch, directions, *(size for width in widths for size in (batch * width, width)), hidden]
        self._sizes = (ctypes.c_longlong * 8)(*numbers)

    def error(self, launch: Any, scratch: torch.Tensor, *settings: int) -> float | None:
        """Of what a launcher makes, relative; None where such a setting isn't available."""
        out = torch.full_like(self._exact, float("nan"), dtype=torch.float32)
        tensors = pointers(out, self._last, torch.empty_like(self._last), *self._given)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = launch(*tensors, None, None, *pointers(scratch), self._sizes, *settings, stream)
        torch.cuda.synchronize()
        assert status in (0, -1), (status, settings)
        return None if status else float((out.double() - self._exact).norm() / self._exact.norm())


@pytest.mark.parametrize(SIZES, LAYERS)
def test_every_setting_agrees_with_float64(kind, hidden, batch, steps, directions, tmp_path):
    for path, text in kernel_files(Device.CUDA, "layer", kernel(kind, hidden, Device.CUDA)).items():
        (tmp_path / Path(path).name).write_text(text)
    launch = getattr(compiled(tmp_path / "layer.cu", tmp_path, ()), f"launch_recurrent_{kind}_{hidden}")
    layer = Layer(kind, hidden, batch, steps, directions)
    for config in range(CONFIGS):
        error = layer.error(launch, torch.empty(1024, dtype=torch.int32, device="cuda"), config)
        assert error is not None and error < 1e-5, (config, error)


@pytest.mark.parametrize(SIZES, [*LAYERS, (0, 1100, 40, 20, 2)])
def test_a_product_for_each_step_agrees_with_float64(kind, hidden, batch, steps, directions, tmp_path):
    texts = kernel_files(Device.CUDA, "steps", steps_kernel(kind)) | product_files()
    for path, text in texts.items():
        (tmp_path / Path(path).name).write_text(text)
    with (tmp_path / "steps.cu").open("a") as both:
        both.write((tmp_path / "gemm.cu").read_text())
    launch = getattr(compiled(tmp_path / "steps.cu", tmp_path, LIBRARIES["gemm"]), f"launch_recurrent_steps_{kind}")
    layer = Layer(kind, hidden, batch, steps, directions)
    sums = torch.empty(directions, batch, (4, 3, 1)[kind] * hidden, device="cuda")
    for math, most in ((0, 1e-5), (1, 2e-3)):
        errors = [layer.error(launch, sums, math, config) for config in range(STEPWISE)]
        assert errors[0] is not None and all(error < most for error in errors if error is not None), (math, errors)
