"""cuda-agent lock"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import emit, say
from cuda_agent.core.errors import EXIT_OK, CudaAgentError
from cuda_agent.release.lock import StackLock, read_lock


def command(
    out: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path(StackLock.file_name),
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Write down the stack that times depend on, for --locked; says what differs from the file as it was."""
    here = read_lock()
    before = _before(out)
    here.save(out)
    for difference in () if before is None else before.differences(here):
        say(str(difference))
    if as_json:
        emit(here.to_json())
    else:
        say(f"locked in {out}")
    return EXIT_OK


def _before(path: Path) -> StackLock | None:
    """The lock that is about to be replaced; one that can't be read is replaced too."""
    if not path.exists():
        return None
    try:
        return StackLock.load(path)
    except CudaAgentError:
        return None
