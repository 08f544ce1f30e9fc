"""Prepares verl for a device. On a CPU it uses verl's extension points: a platform and registered engines."""

import os
import socket
import warnings

from cuda_agent.core.errors import DeviceError

#: module that verl imports in each of its processes. It serves CPUs and machines without flash-attention.
PLUGIN = "cuda_agent.training.engine.plugin"
#: verl's names of platforms.
_PLATFORMS = {"cuda": "nvidia", "cpu": "cpu"}


def prepare(device: str) -> str:
    """Sets the variables that verl reads at its first import. Returns `cuda` or `cpu`. Raises DeviceError if `cuda` is
    requested and absent, or if this process has started with another device."""
    import torch

    found = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if found == "cuda" and not torch.cuda.is_available():
        raise DeviceError("There is no GPU for the training", "Set device: cpu in the configuration")
    if os.environ.get("VERL_PLATFORM", _PLATFORMS[found]) != _PLATFORMS[found]:
        raise DeviceError("verl already runs on another device in this process", "Begin a new process")
    os.environ.update(environment(found))
    # Imported here, since transformers reads the variables too. It shows a bar for every model and a table for every
    # new head.
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    warnings.filterwarnings("ignore", module=r"verl\.|torch\.distributed|torch\.autograd")
    return found


def environment(device: str) -> dict[str, str]:
    """Returns variables for verl on this device. Its other processes need them too."""
    return {
        "VERL_PLATFORM": _PLATFORMS[device],
        "VERL_USE_EXTERNAL_MODULES": PLUGIN,
        "HYDRA_FULL_ERROR": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # models are folders: a wrong path fails at once instead of asking a server.
        "HF_HUB_OFFLINE": "1",
        "VERL_LOGGING_LEVEL": os.environ.get("VERL_LOGGING_LEVEL", "WARNING"),
    }


def join_alone() -> None:
    """Joins a process group of this process alone. torch's rendezvous listens on a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
