"""Options that several commands share and that are no settings of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

KeyFileArg = Annotated[
    Path | None, typer.Option("--api-key-file", help="File with the key; else it is in the environment.")
]
PricesArg = Annotated[
    Path | None, typer.Option("--prices", metavar="FILE", help="Table of a model's prices per million tokens.")
]
TrainingArg = Annotated[
    Path, typer.Option("--config", metavar="FILE", help="Training's configuration (TOML or YAML), or a preset's name.")
]
SetArg = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as ppo.steps=20.")
]
JsonArg = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, nothing else.")]
DebugArg = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
