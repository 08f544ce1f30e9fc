"""Write."""

from __future__ import annotations

from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.tools.base import Arguments, Tool, ToolAnswer


class WriteArguments(Arguments):
    """Write a whole file: model_new.py, or one under kernels/ (.cu .cuh .cpp .h .hpp). An existing file must have
    been read first."""

    path: str
    content: str


def _run(arguments: WriteArguments, context: ToolContext) -> ToolAnswer:
    created = context.files.write(arguments.path, arguments.content)
    lines = len(arguments.content.splitlines())
    return ToolAnswer(
        f"{'Created' if created else 'Replaced'} {arguments.path} ({lines} lines).", data={"created": created}
    )


WRITE = Tool("Write", WriteArguments, _run)
