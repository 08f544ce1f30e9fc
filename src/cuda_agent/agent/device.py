"""Chooses the device of a run and checks its compilers, before anything expensive starts."""

import os
import shutil

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import DeviceError, UsageError
from cuda_agent.core.stack import find_nvcc, read_stack


def resolve_device(choice: str) -> Device:
    """`auto` means the GPU if there is one. Raises UsageError for an unknown choice, DeviceError when something is
    missing."""
    if choice not in ("auto", "cuda", "cpu"):
        raise UsageError(f"No device {choice!r}", "Choose one of: auto, cuda, cpu")
    stack = read_stack()
    without_cuda = "+cpu" in (stack.torch or "")
    if choice == "auto":
        choice = "cuda" if stack.gpus and not without_cuda else "cpu"
    if choice == "cuda":
        if not stack.gpus:
            raise DeviceError("No NVIDIA GPU is visible here", "Run on a machine with one, or use --device cpu")
        if without_cuda:
            raise DeviceError(
                f"torch {stack.torch} is built without CUDA",
                "Install a CUDA build (pip install --force-reinstall torch), or use --device cpu",
            )
        if find_nvcc() is None:
            raise DeviceError(
                "CUDA's compiler nvcc was not found",
                "Install the CUDA toolkit or set CUDA_HOME to where it is, or use --device cpu",
            )
    if find_cxx() is None:
        raise DeviceError("No C++ compiler (g++) was found", "Install one: apt-get install g++")
    return Device(choice)


def find_cxx() -> str | None:
    """Returns the path of `$CXX` or g++, or None."""
    return shutil.which(os.environ.get("CXX") or "g++")
