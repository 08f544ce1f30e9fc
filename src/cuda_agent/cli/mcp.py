"""cuda-agent mcp"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.agent.device import resolve_device
from cuda_agent.cli.support.options import DebugArg
from cuda_agent.core.errors import EXIT_OK


def command(
    directory: Annotated[Path, typer.Argument(metavar="[WORKSPACE]", help="Laid out by `cuda-agent init`.")] = Path(),
    debug: DebugArg = False,
) -> int:
    """Serve the tools of a workspace to an agent of your own, over the Model Context Protocol (stdio)."""
    from cuda_agent.agent.mcp import serve
    from cuda_agent.workspace import layout

    workspace = layout.open_workspace(directory)
    resolve_device(workspace.options.device.value)
    serve(workspace)
    return EXIT_OK
