"""Linear layers in half precision with what may follow them in one kernel, and calls of that kernel's launcher."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Step


class Layer(nn.Module):
    """A function of a linear layer and the inputs."""

    def __init__(self, function: Callable[..., Any], wide: int, high: int, *, bias: bool = True) -> None:
        super().__init__()
        self.inner, self.function = nn.Linear(wide, high, bias=bias), function
        self.scale = nn.Parameter(torch.randn(high))

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        return self.function(self, x) if y is None else self.function(self, x, y)


def _rotated(layer: Layer, x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Heads side by side, an angle for each place and each element of a head."""
    return layer.inner(x).view(*x.shape[:2], 4, 24) * angle[:, None]


def _places(count: int, like: torch.Tensor) -> torch.Tensor:
    return torch.arange(count, dtype=like.dtype, device=like.device)


def _several(layer: Layer, x: torch.Tensor, y: torch.Tensor) -> Any:
    total = layer.inner(x) + y
    return total, total.float().exp(), total > 0


#: name -> the function, the shapes of its inputs, the layer's sizes, and whether it has a bias. Input and bias are in
#: half precision.
CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], tuple[int, int], bool]] = {
    "gelu": (lambda m, x: F.gelu(m.inner(x)), ((2, 50, 64),), (64, 96), True),
    "gelu_residual": (lambda m, x, y: F.gelu(m.inner(x)) + y, ((70, 40), (70, 72)), (40, 72), True),
    "gate": (lambda m, x, y: F.silu(y) * m.inner(x), ((3, 33, 64), (3, 33, 72)), (64, 72), False),
    "scaled": (lambda m, x, y: y + m.scale * m.inner(x), ((2, 65, 32), (2, 65, 104)), (32, 104), True),
    "rows_scaled": (lambda m, x, y: m.inner(x) * y.sigmoid(), ((2, 65, 32), (2, 65, 1)), (32, 80), False),
    "relu_residual": (lambda m, x, y: F.relu(m.inner(x)) + y, ((80, 64), (80, 64)), (64, 64), True),
    "tanh_gelu_scaled": (
        lambda m, x: F.gelu(m.inner(x), approximate="tanh") * m.scale,
        ((80, 64),),
        (64, 64),
        True,
    ),
    "rotated": (_rotated, ((3, 40, 64), (40, 24)), (64, 96), True),
    "heads": (lambda m, x: m.inner(x).view(2, 50, 6, 16).transpose(1, 2).sin(), ((2, 50, 48),), (48, 96), True),
    "several": (_several, ((72, 64), (72, 64)), (64, 64), True),
    "slice_beside": (lambda m, x, y: m.inner(x).tanh() * y[:, 16:112], ((72, 64), (72, 128)), (64, 96), True),
    "sliced_rows": (lambda m, x, y: m.inner(x[:, 8:72]) - y, ((72, 96), (72, 96)), (64, 96), True),
    "places": (
        lambda m, x: m.inner(x) + _places(96, x) * (_places(72, x)[:, None] < 40),
        ((72, 64),),
        (64, 96),
        True,
    ),
}


def case(name: str, dtype: torch.dtype, device: str = "cpu") -> tuple[nn.Module, list[torch.Tensor]]:
    function, shapes, sizes, bias = CASES[name]
    torch.manual_seed(0)
    module = Layer(function, *sizes, bias=bias).to(device, dtype)
    return module, [torch.randn(shape).to(device, dtype) for shape in shapes]


def source_of(step: Step) -> str:
    """The kernel's path."""
    (path,) = (path for path in step.files if path.startswith("kernels/product_"))
    return path


def launch(library: ctypes.CDLL, step: Step, buffers: Mapping[str, torch.Tensor], tiling: int, stream: Any) -> int:
    """Calls the launcher as the binding does. Returns its status."""
    called = re.search(r"(launch_product_\w+)\((.*)\);", step.call)
    assert called is not None
    arguments = [_argument(text, buffers) for text in called[2].split(", ")[:-2]]
    return int(getattr(library, called[1])(*arguments, ctypes.c_int(tiling), stream))


def _argument(text: str, buffers: Mapping[str, torch.Tensor]) -> Any:
    if text.isdigit():
        return ctypes.c_longlong(int(text))
    named = {cpp_name(name): tensor for name, tensor in buffers.items()}
    found = re.fullmatch(r"(?:static_cast<const char\*>\()?(\w+)\.data_ptr\(\)(?:\) \+ (\d+)LL)?", text)
    assert found is not None, text
    return ctypes.c_void_p(named[found[1]].data_ptr() + int(found[2] or 0))
