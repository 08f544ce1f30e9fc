"""Recurrent layers on a GPU: the playbook's program of all kinds, and the kernel's every setting at usual sizes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from library_kernels import compiled, pointers
from torch import nn

from cuda_agent.core.enums import Device
from cuda_agent.playbook.codegen import kernel_files
from cuda_agent.playbook.skills.recurrent.skill import CONFIGS, kernel
from playbook_recurrent import check_networks

pytestmark = pytest.mark.gpu


def test_every_kind_agrees_with_torch(tmp_path: Path) -> None:
    check_networks(Device.CUDA, tmp_path)


@pytest.mark.parametrize(
    ("kind", "hidden", "batch", "steps", "directions"),
    [(0, 256, 10, 50, 1), (0, 512, 64, 30, 1), (0, 1024, 33, 20, 2), (1, 640, 100, 20, 2), (2, 2048, 7, 20, 1)],
)
def test_every_setting_agrees_with_float64(kind, hidden, batch, steps, directions, tmp_path):
    for path, text in kernel_files(Device.CUDA, "layer", kernel(kind, hidden, Device.CUDA)).items():
        (tmp_path / Path(path).name).write_text(text)
    launch = getattr(compiled(tmp_path / "layer.cu", tmp_path, ()), f"launch_recurrent_{kind}_{hidden}")
    torch.manual_seed(0)
    module = (nn.LSTM, nn.GRU, nn.RNN)[kind](64, hidden, bidirectional=directions == 2).cuda().requires_grad_(False)
    x = torch.randn(steps, batch, 64, device="cuda")
    exact = module.double()(x.double())[0]
    module.float()
    named, ends = dict(module.named_parameters()), ("", "_reverse")[:directions]

    def joint(name: str) -> torch.Tensor:
        return torch.cat([named[f"{name}_l0{end}"] for end in ends])

    given = (x.double() @ joint("weight_ih").double().T + joint("bias_ih").double()).float().contiguous()
    last = torch.empty(directions, batch, hidden, device="cuda")
    arrived = torch.empty(1024, dtype=torch.int32, device="cuda")
    numbers = [steps, batch, directions, batch * given.shape[2], given.shape[2], batch * exact.shape[2], exact.shape[2]]
    sizes = (ctypes.c_longlong * 7)(*numbers)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    for config in range(CONFIGS):
        out, cell = torch.full_like(exact, float("nan"), dtype=torch.float32), torch.empty_like(last)
        tensors = pointers(out, last, cell, given, joint("weight_hh"), joint("bias_hh"))
        status = launch(*tensors, None, None, *pointers(arrived), sizes, config, stream)
        torch.cuda.synchronize()
        assert status == 0, (status, config)
        error = (out.double() - exact).norm() / exact.norm()
        assert error < 1e-5, (config, float(error))
