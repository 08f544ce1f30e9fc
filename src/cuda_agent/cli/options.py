"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
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
JsonArg = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, nothing else.")]
DebugArg = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
