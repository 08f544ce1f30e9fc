"""Where verl runs: on a GPU as it is; on a CPU through its public extension points (a platform, registered engines)."""

from __future__ import annotations

import os
import socket
import warnings
from typing import Any

from cuda_agent.core.errors import DeviceError

#: the module that verl imports in each of its processes, where it runs on a CPU or without flash-attention.
PLUGIN = "cuda_agent.training.engine.plugin"
#: verl's names of platforms.
_PLATFORMS = {"cuda": "nvidia", "cpu": "cpu"}


def prepare(device: str) -> str:
    """Set what verl reads when it is first imported; returns `cuda` or `cpu`. Raises DeviceError where `cuda` is asked
    for and absent, or where this process has begun with another device."""
    import torch

    found = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if found == "cuda" and not torch.cuda.is_available():
        raise DeviceError("There is no GPU for the training", "Set device: cpu in the configuration")
    if os.environ.get("VERL_PLATFORM", _PLATFORMS[found]) != _PLATFORMS[found]:
        raise DeviceError("verl already runs on another device in this process", "Begin a new process")
    os.environ.update(environment(found))
    quiet()
    warnings.filterwarnings("ignore", module=r"verl\.|torch\.distributed|torch\.autograd")
    return found


def quiet() -> None:
    """transformers shows a bar for every model that is read or written, and a table for every new head."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def environment(device: str) -> dict[str, str]:
    """Variables for verl on this device; its other processes need the same."""
    return {
        "VERL_PLATFORM": _PLATFORMS[device],
        "VERL_USE_EXTERNAL_MODULES": PLUGIN,
        "HYDRA_FULL_ERROR": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # models are folders: a wrong path is said at once, and nothing is asked of a server.
        "HF_HUB_OFFLINE": "1",
        "VERL_LOGGING_LEVEL": os.environ.get("VERL_LOGGING_LEVEL", "WARNING"),
    }


def join_alone() -> None:
    """This process is the only one of its group. torch's rendezvous listens on a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in alone.items():
        os.environ.setdefault(name, value)


def leave() -> None:
    """End the process group, where there is one."""
    import torch.distributed as group

    if group.is_initialized():
        group.destroy_process_group()


def precision(name: str) -> Any:
    """`float16` -> torch.float16."""
    import torch

    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
