"""A small task of the cpu device, a correct kernel for it written by hand, and a policy that plays given moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cuda_agent.agent.policy import Brief
from cuda_agent.core.records import PolicyMove, ToolCall, Turn

SOURCE = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.scale = scale

    def forward(self, x, y):
        return torch.relu(x * self.scale + y) * torch.sigmoid(y)


def get_inputs():
    return [torch.randn(512, 512), torch.randn(512, 512)]


def get_init_inputs():
    return []
"""

KERNEL = """#include <cmath>
#include <cstdint>

extern "C" void gated_launcher(float* out, const float* x, const float* y, float scale, int64_t n, int config) {
  (void)config;
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < n; ++i) {
    const float v = scale * x[i] + y[i];
    out[i] = (v > 0.0f || std::isnan(v) ? v : 0.0f) / (1.0f + std::exp(-y[i]));
  }
}
"""

BINDING = """#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include "../binding_registry.h"

extern "C" void gated_launcher(float* out, const float* x, const float* y, float scale, int64_t n, int config);

static torch::Tensor gated(torch::Tensor x, torch::Tensor y, double scale, int config) {
  TORCH_CHECK(x.scalar_type() == torch::kFloat32 && x.is_contiguous() && y.is_contiguous(), "contiguous float32");
  auto out = torch::empty_like(x);
  gated_launcher(out.data_ptr<float>(), x.data_ptr<float>(), y.data_ptr<float>(), (float)scale, x.numel(), config);
  return out;
}

static void register_gated(pybind11::module& m) { m.def("gated", &gated); }
REGISTER_BINDING(gated, register_gated);
"""

MODEL_NEW = """import torch
import torch.nn as nn

import cuda_extension

CONFIG = {"config": 0}


class ModelNew(nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.scale = scale

    def forward(self, x, y):
        return cuda_extension.gated(x, y, self.scale, CONFIG["config"])
"""

FILES = {"kernels/gated.cpp": KERNEL, "kernels/gated_binding.cpp": BINDING, "model_new.py": MODEL_NEW}


def call(tool: str, **arguments: object) -> ToolCall:
    return ToolCall(id=tool, tool=tool, arguments=arguments)


def move(*calls: ToolCall) -> PolicyMove:
    return PolicyMove(message="", calls=calls)


def writes(files: dict[str, str]) -> PolicyMove:
    return move(*(call("Write", path=path, content=text) for path, text in files.items()))


class Scripted:
    """Plays its moves; a move may be a function, called in its turn (to raise, or to look)."""

    name = "scripted"

    def __init__(self, moves: Sequence[PolicyMove | Callable[[], PolicyMove]]) -> None:
        self._moves = list(moves)

    def __call__(self, brief: Brief) -> Scripted:
        self.brief = brief
        return self

    def next(self, history: Sequence[Turn]) -> PolicyMove:
        chosen = self._moves[len(history)]
        return chosen if isinstance(chosen, PolicyMove) else chosen()


def write_task(folder: Path, source: str = SOURCE, name: str = "gated") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(source)
    return path
