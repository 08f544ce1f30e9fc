from __future__ import annotations

import pytest

from cuda_agent.tasks.compose.plain import without_defaults


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        (
            "nn.Conv2d(c, 64, kernel_size=3, stride=1, padding=1, bias=True)",
            "nn.Conv2d(c, 64, kernel_size=3, padding=1)",
        ),
        ("nn.LeakyReLU(negative_slope=0.01)", "nn.LeakyReLU()"),
        ("nn.LeakyReLU(negative_slope=0.2)", "nn.LeakyReLU(negative_slope=0.2)"),
        ("x.sum(dim=-1, keepdim=False)", "x.sum(dim=-1)"),
        ("torch.sort(x, dim=-1, descending=False).values", "torch.sort(x, dim=-1).values"),
        ("torch.relu(x.sum(dim=1, keepdim=False))", "torch.relu(x.sum(dim=1))"),
        ('F.gelu(x, approximate="none")', "F.gelu(x)"),
        ("nn.LSTM(d, h, num_layers=1, batch_first=True)", "nn.LSTM(d, h, batch_first=True)"),
        ("x * 0.5", "x * 0.5"),
        ("torch.clamp(x, min=0.0, max=1.0)", "torch.clamp(x, min=0.0, max=1.0)"),
    ],
)
def test_what_holds_anyway_is_left_out(written: str, plain: str) -> None:
    assert without_defaults(written) == plain
