"""A task for the promotion gate, a kernel that is good by a wide margin, and what is wrong with others.

The fall of series below their highest value so far, column by column: eager takes a slow running maximum and two more
passes, and a compiler can't fuse them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate, Task
from cuda_agent.release.gate import GateOptions, SpeedGate, VerificationGate
from cuda_agent.workspace import layout

TASK = Task(
    name="drawdown",
    source="""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return (torch.cummax(x, dim=0).values - x) * self.scale


def get_inputs():
    return [torch.randn(512, 1024)]


def get_init_inputs():
    return [1024]
""",
)
MODEL = """
import cuda_extension
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return cuda_extension.drawdown(x, self.scale)
"""
BINDING = """
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>

#include "../binding_registry.h"

extern "C" void drawdown_launcher(float* out, const float* x, const float* scale, int64_t rows, int64_t width);

static torch::Tensor drawdown(torch::Tensor x, torch::Tensor scale) {
  auto out = torch::empty_like(x);
  drawdown_launcher(out.data_ptr<float>(), x.data_ptr<float>(), scale.data_ptr<float>(), x.size(0), x.size(1));
  return out;
}

static void register_drawdown(pybind11::module& m) { m.def("drawdown", &drawdown); }
REGISTER_BINDING(drawdown, register_drawdown);
"""
KERNEL = """
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" void drawdown_launcher(float* out, const float* x, const float* scale, int64_t rows, int64_t width) {
  std::vector<float> highest(x, x + width);
  float* top = highest.data();
  for (int64_t row = 0; row < rows; ++row) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float value = x[row * width + i];
      top[i] = value > top[i] || value != value ? value : top[i];
      out[row * width + i] = (top[i] - value) * scale[i];
    }
  }
}
"""
#: an output that isn't NaN where an input is.
DROPS_NAN = KERNEL.replace(" || value != value", "")
#: a batch dimension that the kernel was written for.
FIXED_ROWS = KERNEL.replace("row < rows", "row < 512")
#: finite values beyond what anybody drew when it was written.
NARROW = KERNEL.replace(
    "const float value = x[row * width + i];",
    """float value = x[row * width + i];
      if (value - value == 0) value = value > 20000.0f ? 20000.0f : value < -20000.0f ? -20000.0f : value;""",
)
#: the product in bfloat16.
HALF = KERNEL.replace("(top[i] - value) * scale[i]", "rounded(top[i] - value) * rounded(scale[i])").replace(
    'extern "C"',
    """static float rounded(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x8000u) & 0xffff0000u;
  std::memcpy(&value, &bits, 4);
  return value;
}

extern "C\"""",
    1,
)
#: right, and busy with nothing before.
SLOW = KERNEL.replace(
    "  float* top", "  for (volatile int again = 0; again < 30000000; again = again + 1) {}\n  float* top"
)
TORCH = MODEL.replace(
    "return cuda_extension.drawdown(x, self.scale)", "return (torch.cummax(x, dim=0).values - x) * self.scale"
)


def candidate(kernel: str = KERNEL, model: str = MODEL) -> Candidate:
    files = {"model_new.py": model, "kernels/drawdown.cpp": kernel, "kernels/drawdown_binding.cpp": BINDING}
    return Candidate(files=files)


def workspace(directory: Path, of: Candidate, task: Task = TASK) -> Path:
    """A workspace that holds the candidate."""
    opened = layout.create(task, directory, options=JudgeOptions(device=Device.CPU, host_memory_mib=8192))
    opened.restore(of)
    return directory


def gate(**changes: Any) -> GateOptions:
    """Short, and of any stack."""
    verification = VerificationGate(trials=2, shapes="none")
    speed = SpeedGate(baselines=("eager",), timing_budget_s=0.4)
    return GateOptions(**{"lock": None, "sandbox": "any", "verification": verification, "speed": speed, **changes})
