"""The tools of one workspace over the Model Context Protocol, for people with their own agent.

The official SDK (extra `mcp`) speaks the protocol. This module provides the tools, one call at a time, and progress.
"""

import functools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent.agent.best import Best
from cuda_agent.agent.context import Progress, ToolContext
from cuda_agent.agent.files import WorkspaceFiles
from cuda_agent.agent.judging import open_judge
from cuda_agent.agent.shell import open_shell
from cuda_agent.agent.tools.registry import ALL, Toolbox
from cuda_agent.core.errors import CudaAgentError, DeviceError
from cuda_agent.core.records import ToolCall, ToolResult
from cuda_agent.workspace.layout import Workspace

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

#: Finish ends a run of this project. Here the client decides when to end.
_LEFT_OUT = ("Finish",)
_FOLDER = Path(".cuda-agent") / "mcp"


def serve(workspace: Workspace) -> None:
    """Serves on standard input and output until the client closes them. Raises DeviceError without the SDK, StoreError
    while another process holds the workspace, and what a shell raises."""
    try:
        from mcp.server.stdio import stdio_server
    except ImportError:
        cause = "The Model Context Protocol's SDK isn't installed"
        raise DeviceError(cause, "pip install 'cuda-agent[mcp]'") from None
    import anyio

    async def run(server: "Server[Any]") -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    with workspace.lock(), opened(workspace) as tools:
        anyio.run(run, tools.server())


@contextmanager
def opened(workspace: Workspace) -> "Iterator[Tools]":
    """Yields the tools of a workspace. Workers start with the first judged call and end with the block."""
    folder = workspace.directory / _FOLDER
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    told = ProgressRelay()
    with ExitStack() as stack:
        # The task is checked with the first judged call, so that a client needn't wait to see the tools.
        session, socket = stack.enter_context(open_judge(workspace.task, workspace, told, (), admitted=True))
        shell = stack.enter_context(open_shell(workspace, hidden=(), socket=socket))
        files = WorkspaceFiles(workspace.directory, logs)
        yield Tools(ToolContext(workspace, session, files, shell, Best(folder), logs), told)


class ProgressRelay:
    """Forwards progress to the client of the current call."""

    def __init__(self) -> None:
        self.listener: Progress | None = None

    def __call__(self, phase: str, text: str) -> None:
        if self.listener is not None:
            self.listener(phase, text)


class Tools:
    """The toolbox behind an MCP server."""

    def __init__(self, context: ToolContext, told: ProgressRelay) -> None:
        self._box = Toolbox(context, tuple(tool for tool in ALL if tool.__name__ not in _LEFT_OUT))
        self._told = told
        self._lock = threading.Lock()
        self._calls = 0

    def call(self, name: str, arguments: dict[str, Any], progress: Progress) -> ToolResult:
        """Runs one call at a time. A failure of this machine is an answer too, and the server continues."""
        with self._lock:
            self._calls += 1
            call = ToolCall(id=str(self._calls), tool=name, arguments=arguments)
            self._told.listener = progress
            try:
                return self._box.call(call)
            except CudaAgentError as error:
                return ToolResult(call_id=call.id, text=f"error: {error}", ok=False)
            finally:
                self._told.listener = None

    def server(self) -> "Server[Any]":
        """The SDK's server, with list and call of tools."""
        import anyio
        import anyio.from_thread
        import anyio.to_thread
        import mcp_types as types
        from mcp.server.lowlevel import Server

        functions = [schema["function"] for schema in self._box.schemas()]
        listed = [
            types.Tool(name=one["name"], description=one["description"], input_schema=one["parameters"])
            for one in functions
        ]

        async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
            return types.ListToolsResult(tools=listed)

        async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
            steps = 0

            async def report(text: str) -> None:
                nonlocal steps
                steps += 1
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await context.session.report_progress(float(steps), message=text)

            def progress(phase: str, text: str) -> None:
                # The judge reports from its own threads too, which the event loop doesn't know.
                with suppress(RuntimeError):
                    anyio.from_thread.run(report, f"{phase}: {text}" if text else phase)

            work = functools.partial(self.call, params.name, params.arguments or {}, progress)
            result = await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
            content: list[Any] = [types.TextContent(type="text", text=result.text)]
            return types.CallToolResult(content=content, structured_content=result.data, is_error=not result.ok)

        return Server(
            "cuda-agent",
            version=metadata.version("cuda-agent"),
            instructions=_INSTRUCTIONS,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
        )


_INSTRUCTIONS = (
    "Tools of one workspace in which a PyTorch module is made faster by kernels of your own. Read SKILL.md first: it "
    "holds the rules, the patterns and the workflow. Compile, Verify, Profile and Inspect ask the judge, which decides."
)
