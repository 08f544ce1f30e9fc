"""The compiler in a worker: imported ahead, and what it made of a program, by TorchDynamo's own counters, read after
the compilation, at no cost to it."""

from __future__ import annotations

import contextlib
import importlib
import time

from cuda_agent.core.enums import Device
from cuda_agent.core.records import CompileReport

_COMPILER = ("torch._dynamo", "torch._inductor.compile_fx")
#: what it imports when it first compiles for a GPU.
_GPU_COMPILER = (
    "torch._inductor.codegen.triton", "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.runtime.triton_heuristics", "torch._inductor.fx_passes.post_grad", "triton.language",
    "triton.compiler",
)  # fmt: skip
_MOST_REASONS, _LONGEST = 8, 400


def import_compiler(device: Device) -> None:
    """Seconds of a core's work; starts no device."""
    for name in (*_COMPILER, *(_GPU_COMPILER if device is Device.CUDA else ())):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def forget_compilations() -> float:
    """Sets the counters to zero; the time at which that was, for `count_compilations`."""
    import torch._dynamo

    # What a form before has compiled is guarded by that form's own code, so nothing is forgotten but numbers.
    torch._dynamo.utils.counters.clear()
    return time.monotonic()


def count_compilations(begin: float) -> CompileReport:
    """What was compiled since `begin`."""
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
    """What it says before its hints."""
    return " ".join(str(reason).partition("\n  Hint")[0].split())[:_LONGEST]  # foreign text: torch's
