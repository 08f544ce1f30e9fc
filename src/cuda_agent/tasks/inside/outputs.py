"""Compares the outputs of a task: whether they vary, and samples that another process must reproduce."""

from typing import Any

import torch

#: The number of values of each output that are compared between processes.
_SAMPLED = 64
#: The relative difference below which two outputs for different inputs are the same.
NO_DIFFERENCE = 1e-5
#: The standard deviation over the mean below which an output counts as constant.
NEARLY = 0.01


def is_constant(tensor: Any) -> bool:
    """Returns whether all elements are the same, or spread by less than NEARLY of their mean, such as the variances of
    long random rows. A single number isn't constant."""
    if tensor.numel() < 2:
        return bool(tensor.numel() == 0)
    if not tensor.is_floating_point():
        low, high = torch.aminmax(tensor)
        return bool(low == high)
    spread, mean = torch.std_mean(tensor.float(), correction=0)
    return float(spread) <= NEARLY * abs(float(mean))


def is_near(mine: Any, yours: Any) -> bool:
    if not mine.is_floating_point():
        return bool(torch.equal(mine, yours))
    apart = float(torch.linalg.vector_norm(mine.float() - yours.float()))
    return apart <= NO_DIFFERENCE * float(torch.linalg.vector_norm(mine.float()))


def sampled(tensor: Any) -> tuple[float, ...]:
    """Returns the tensor's norm, and values at regular places."""
    flat = tensor.reshape(-1)
    step = max(1, flat.numel() // _SAMPLED)
    norm = torch.linalg.vector_norm(flat.float())
    return (float(norm), *(float(value) for value in flat[::step][:_SAMPLED].double().cpu()))
