"""Measures the peak memory of a task in its process, and frees what it leaves."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from cuda_agent.core.enums import Device


@contextlib.contextmanager
def peak_memory(device: Device) -> Iterator[list[int]]:
    """Measures the most memory held in the block, weights and inputs included. The result is empty where it can't be
    measured."""
    if device is Device.CUDA:
        with most_held(device) as found:
            yield found
        return
    found = []
    started = _resident("VmRSS")
    with contextlib.suppress(OSError):
        # This resets the peak to what is resident now.
        Path("/proc/self/clear_refs").write_text("5")
    yield found
    peak = _resident("VmHWM")
    if started is not None and peak is not None:
        found.append(max(0, peak - started))


@contextlib.contextmanager
def most_held(device: Device) -> Iterator[list[int]]:
    """Measures like `peak_memory` where the device counts memory itself. The result is empty on the CPU."""
    found: list[int] = []
    if device is Device.CUDA:
        torch.cuda.reset_peak_memory_stats()
    yield found
    if device is Device.CUDA:
        found.append(int(torch.cuda.max_memory_allocated()))


def _resident(field: str) -> int | None:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])
    return None


def free_cache(device: Device) -> int:
    """Returns torch's unused device memory to the driver, for other processes. Returns the bytes that stay."""
    if device is not Device.CUDA:
        return 0
    torch.cuda.empty_cache()
    return reserved_memory(device)


def reserved_memory(device: Device) -> int:
    """Returns the bytes of device memory that torch holds in this process, used or not; 0 on the CPU."""
    return int(torch.cuda.memory_reserved()) if device is Device.CUDA else 0


def give_back(device: Device) -> None:
    """Frees what the task before held, and what was compiled for it."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.enable()
    gc.collect()
    # Imported modules stay, since a collection that walks over them takes 0.2 s.
    gc.freeze()
    if device is Device.CUDA:
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    else:
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
