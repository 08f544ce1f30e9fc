"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.core.enums import Precision


class DeviceOption(StrEnum):
    """Where to run; `auto` is the GPU if there is one."""

    AUTO = "auto"
    CUDA = "cuda"
    CPU = "cpu"


class SandboxOption(StrEnum):
    """`auto` is the strongest that works here."""

    AUTO = "auto"
    FULL = "full"
    REDUCED = "reduced"


class SeedOption(StrEnum):
    """What can make a first candidate."""

    PLAYBOOK = "playbook"


DeviceArg = Annotated[DeviceOption, typer.Option("--device", help="Where to run; auto is the GPU if there is one.")]
PrecisionArg = Annotated[
    Precision, typer.Option("--precision", help="Arithmetic that is allowed inside float32 operators.")
]
SandboxArg = Annotated[
    SandboxOption, typer.Option("--sandbox", help="Isolation; auto is the strongest that works here.")
]
TimingArg = Annotated[
    float | None, typer.Option("--timing-budget", metavar="SECONDS", help="Most time that one profile's rounds take.")
]
TritonArg = Annotated[
    bool, typer.Option("--allow-triton", help="Judge Triton kernels too, as comparisons that are never promoted.")
]
TokensArg = Annotated[
    int | None, typer.Option("--max-tokens", min=1, help="Most tokens that the model reads and writes.")
]
CostArg = Annotated[float | None, typer.Option("--max-cost", help="Most that the model may cost, by its price table.")]
MinutesArg = Annotated[float | None, typer.Option("--max-minutes", help="Most time of the run.")]
GpuMinutesArg = Annotated[
    float | None, typer.Option("--max-gpu-minutes", help="Most time of the judge, which holds the device.")
]
KeyFileArg = Annotated[
    Path | None, typer.Option("--api-key-file", help="File with the key; else it is in the environment.")
]
JsonArg = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, nothing else.")]
DebugArg = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def limits(
    turns: int | None, tokens: int | None, cost: float | None, minutes: float | None, gpu_minutes: float | None
) -> dict[str, int | float | None]:
    """Those that were given, as `core.config.Limits` has them."""
    given: dict[str, int | float | None] = {"turns": turns, "tokens": tokens, "cost": cost}
    given["wall_s"] = None if minutes is None else 60 * minutes
    given["judge_s"] = None if gpu_minutes is None else 60 * gpu_minutes
    return {name: value for name, value in given.items() if value is not None}
