"""Imports the compiler in a worker ahead of time, and counts what it compiled by TorchDynamo's own counters, which are
read after the compilation at no cost to it."""

from __future__ import annotations

import contextlib
import importlib
import time

from cuda_agent.core import bytecode
from cuda_agent.core.enums import Device
from cuda_agent.core.records import CompileReport
from cuda_agent.workers.inside.imports import importing

_MOST_REASONS, _LONGEST = 8, 400


def import_compiler(device: Device) -> None:
    """Imports the compiler, which takes seconds of a core and starts no device."""
    with importing():
        for name in bytecode.modules("compiler", *(["gpu_compiler"] if device is Device.CUDA else [])):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def forget_compilations() -> float:
    """Sets the counters to zero. Returns the present time, for `count_compilations`."""
    import torch._dynamo

    # An earlier form's compiled code is guarded by that form's own code, so only numbers are dropped.
    torch._dynamo.utils.counters.clear()
    return time.monotonic()


def count_compilations(begin: float) -> CompileReport:
    """Returns what was compiled since `begin`."""
    from torch._dynamo.utils import counters

    broken = {**counters["graph_break"], **counters["unimplemented"]}
    frames, inductor = counters["frames"], counters["inductor"]
    reasons = sorted(broken, key=lambda reason: -broken[reason])[:_MOST_REASONS]
    return CompileReport(
        graphs=int(counters["stats"]["unique_graphs"]),
        breaks=int(sum(broken.values())),
        reasons=tuple(map(_line, reasons)),
        fallbacks=max(0, int(frames["total"] - frames["ok"])),
        graphs_refused=int(inductor["cudagraph_skips"]),
        compile_s=time.monotonic() - begin,
    )


def _line(reason: str) -> str:
    """Returns the message before its hints."""
    return " ".join(str(reason).partition("\n  Hint")[0].split())[:_LONGEST]  # foreign text: torch's
