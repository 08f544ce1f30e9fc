"""Modules whose matrix products and convolutions take every path of the library skills."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Packed projections, heads as strided views, two batched products."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, 16).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, c))


class Products(nn.Module):
    """Every operator and operand order that the matrix skill takes, one result each."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(24, 40), nn.Linear(24, 17, bias=False)
        self.w = nn.Parameter(torch.randn(24, 12))
        self.bias = nn.Parameter(torch.randn(12))
        self.stack = nn.Parameter(torch.randn(3, 24, 8))

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        # x [3, 10, 24], y [3, 24, 10]
        return (
            F.relu(self.a(x)),
            F.gelu(self.a(x), approximate="tanh"),
            torch.sin(self.b(y.transpose(1, 2))),
            torch.addmm(self.bias, x[1], self.w),
            x @ self.w,
            x @ y,
            torch.bmm(y.transpose(1, 2), x.transpose(1, 2)),
            x @ self.stack,
            torch.mm(x[0].t(), y[1].t()),
            torch.matmul(x.unsqueeze(1), y.unsqueeze(0)),
            F.linear(x[:, ::2, 8:16], self.a.weight[:, 8:16]),
            self.a(x[0, 0]),
            x.permute(1, 0, 2)[..., ::2] @ self.w[:12],
            y.permute(2, 0, 1)[:, :2] @ self.w,
            F.relu(self.a(x.transpose(0, 1))).flatten(1),
            self.b(x[:, 1:8]),
        )


class Convolutions(nn.Module):
    """One, two and three dimensions, forward and transposed, groups, padding, dilation, strides."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv1d(5, 7, 4, padding="same")
        self.c2 = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.c2s = nn.Conv2d(16, 24, (3, 5), stride=(2, 1), padding=(1, 2), dilation=(2, 1), bias=False)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.grouped = nn.Conv2d(16, 32, 1, groups=4)
        self.c3 = nn.Conv3d(2, 9, 3, stride=2, padding=1)
        self.tokens = nn.Conv1d(21, 4, 3)
        self.t1 = nn.ConvTranspose1d(5, 6, 4, stride=3, padding=1, output_padding=1)
        self.t2 = nn.ConvTranspose2d(16, 12, 3, stride=2, padding=1, output_padding=1)
        self.t2g = nn.ConvTranspose2d(16, 8, 4, stride=2, groups=2)
        self.t3 = nn.ConvTranspose3d(2, 5, 3)

    def forward(self, line: torch.Tensor, image: torch.Tensor, volume: torch.Tensor):
        x = F.silu(self.norm(self.c2(image)))
        return (
            self.c1(line),
            x,
            F.relu(self.c2s(x)),
            torch.tanh(self.depthwise(x)),
            self.grouped(x),
            F.relu(self.c3(volume)),
            self.t1(line),
            self.t2(x),
            self.t2g(x),
            self.t3(volume),
            self.c2(image[0]),
            self.tokens(line.transpose(1, 2)),
        )


def products(dtype: torch.dtype, device: str = "cpu"):
    torch.manual_seed(0)
    module = Products().to(device, dtype)
    return module, [torch.randn(3, 10, 24).to(device, dtype), torch.randn(3, 24, 10).to(device, dtype)]


def convolutions(dtype: torch.dtype, device: str = "cpu"):
    torch.manual_seed(0)
    module = Convolutions().to(device, dtype)
    shapes = ((2, 5, 21), (2, 3, 18, 20), (2, 2, 8, 9, 10))
    return module, [torch.randn(shape).to(device, dtype) for shape in shapes]


def attention(dtype: torch.dtype, device: str = "cpu"):
    torch.manual_seed(0)
    return Attention().to(device, dtype), [torch.randn(3, 8, 64).to(device, dtype)]


class FeedForward(nn.Module):
    """Two equal layers with GELU and residual, then a gated one."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(64, 136) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(136, 64) for _ in range(2))
        self.gate, self.value, self.last = (
            nn.Linear(*sizes, bias=False) for sizes in ((64, 200), (64, 200), (200, 64))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(F.gelu(up(x)))
        return self.last(F.silu(self.gate(x)) * self.value(x)) + x


def feed_forward(dtype: torch.dtype, device: str = "cpu"):
    torch.manual_seed(0)
    return FeedForward().to(device, dtype), [torch.randn(3, 67, 64).to(device, dtype)]


CASES = {
    "products": products,
    "convolutions": convolutions,
    "attention": attention,
    "feed_forward": feed_forward,
}


def relative_error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.double().cpu() - truth.double().cpu()).norm() / (truth.double().norm().cpu() + 1e-30))


def exact(module: nn.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results in float64, on the CPU."""
    with torch.no_grad():
        result = copy.deepcopy(module).cpu().double().eval()(*[item.cpu().double() for item in inputs])
    return list(result) if isinstance(result, tuple) else [result]


class Residual(nn.Module):
    """Convolutions that channels-last engines take: a residual block, an upsampling, biases, a ReLU at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 16, 3, padding=1, bias=False)
        self.narrow = nn.Conv2d(16, 16, 1)
        self.up = nn.ConvTranspose2d(16, 8, 4, 2, 1)

    def forward(self, x):
        h = torch.relu(self.second(torch.nn.functional.silu(self.first(x))) + x)
        return torch.relu(self.up(torch.relu(self.narrow(h) + h)))


def residual(dtype: torch.dtype, device: str = "cpu"):
    torch.manual_seed(3)
    return Residual().to(device, dtype).eval(), [torch.randn(2, 16, 24, 24).to(device, dtype)]


#: Modules whose channels-last plan differs.
LAST_CASES = {"residual": residual}


class Routed(nn.Module):
    """Rows that lie by expert times their expert's matrix, and then in another order. The third expert has none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 40, 24))
        self.register_buffer("ends", torch.tensor([3, 8, 8, 11], dtype=torch.int32))
        self.register_buffer("order", torch.randperm(11))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch._grouped_mm(x, self.weight.transpose(1, 2), self.ends)
        back = torch.empty_like(self.order)
        back[self.order] = torch.arange(11, device=x.device)
        return F.relu(rows)[back] + 1.0

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.searchsorted(self.ends, torch.arange(11, device=x.device), right=True)
        rows = (self.weight[places].double() @ x.double()[:, :, None])[:, :, 0]
        return F.relu(rows)[torch.argsort(self.order)] + 1.0


def routed(dtype: torch.dtype, device: str = "cpu"):
    torch.manual_seed(5)
    return Routed().to(device, dtype).eval(), [torch.randn(11, 24).to(device, dtype)]


class Cached(nn.Module):
    """Attention to a cache with the keys and values of a new token behind it. The layer returns what is new."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.whole = whole
        self.q, self.k, self.v = nn.Linear(96, 8 * 64), nn.Linear(96, 2 * 64), nn.Linear(96, 2 * 64)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = (layer(x).unflatten(-1, (-1, 64)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        k = k * torch.cos(k)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        out = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True).transpose(1, 2).flatten(2)
        return (out, keys, values) if self.whole else (out, k, v)

    def exact(self, *inputs: torch.Tensor) -> torch.Tensor:
        return exact(self, list(inputs))[0]


def cached(dtype: torch.dtype, device: str = "cpu"):
    torch.manual_seed(7)
    shapes = (3, 1, 96), (3, 2, 200, 64), (3, 2, 200, 64)
    return Cached().to(device, dtype).eval(), [torch.randn(shape).to(device, dtype) for shape in shapes]


#: Modules of bfloat16 only.
HALF_CASES = {"routed": routed, "cached": cached}
