"""Columns of patches added up to images, and patches as columns, of any stride, dilation and padding, by the playbook's
kernels on the CPU."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cuda_agent.core.enums import Device
from playbook_harness import check

pytestmark = pytest.mark.integration


def drawn(seed: int) -> tuple[list[int], tuple[list[int], ...], int, tuple[int, ...], torch.dtype]:
    """Size, kernel with its dilation, padding and stride, number of patches, what is before the channels, and a type:
    strides beyond the kernel, dilations that share a factor with it, elements in no patch."""
    draw = random.Random(seed)
    while True:
        size, taps = [draw.randint(1, 14) for _ in "hw"], [draw.randint(1, 5) for _ in "hw"]
        dilation, before = [draw.choice((1, 1, 2, 3, 4)) for _ in "hw"], [draw.choice((0, 0, 1, 3)) for _ in "hw"]
        stride = [draw.choice((1, 2, 3, 4, 6)) for _ in "hw"]
        spans = [n + 2 * p - d * (k - 1) - 1 for n, p, d, k in zip(size, before, dilation, taps, strict=True)]
        if min(spans) >= 0:
            break
    patches = [span // step + 1 for span, step in zip(spans, stride, strict=True)]
    lead, dtype = draw.choice(((), (1,), (3,))), draw.choice((torch.float32, torch.float64, torch.bfloat16))
    return size, (taps, dilation, before, stride), patches[0] * patches[1], lead, dtype


def numbers(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("seed", range(40))
def test_folds_agree_with_torch(seed: int) -> None:
    size, kernel, patches, lead, dtype = drawn(seed)
    channels = (seed % 3 + 1) * kernel[0][0] * kernel[0][1]

    def fold(x: Any) -> Any:
        return F.fold(x, size, *kernel)

    whole = (fold, lambda x: fold(x.relu() + 1) * 2, lambda x: fold(x * x).sum(-1), lambda x: fold(x).mT.exp())
    x = numbers(seed, *lead, channels, patches, dtype=dtype)
    (step, *_) = check(whole[seed % len(whole)], [x], Device.CPU)
    assert step.skill != "scatter"


@pytest.mark.parametrize("seed", range(100, 116))
def test_unfolds_agree_with_torch(seed: int) -> None:
    size, kernel, _, lead, dtype = drawn(seed)

    def unfold(x: Any) -> Any:
        return F.unfold(x, *kernel)

    whole = (unfold, lambda x: unfold(x.relu() + 1) * 2, lambda x: unfold(x * x).sum(-1), lambda x: unfold(x).amax(-2))
    check(whole[seed % len(whole)], [numbers(seed, *lead, seed % 3 + 1, *size, dtype=dtype)], Device.CPU)
