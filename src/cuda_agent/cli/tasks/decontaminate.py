"""cuda-agent tasks decontaminate"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.agent.device import resolve_device
from cuda_agent.cli.support.options import DebugArg, DeviceArg, DeviceOption, JsonArg, SandboxArg, SandboxOption
from cuda_agent.cli.support.output import ProgressView, emit, say
from cuda_agent.tasks.captured import MEMORY_MIB
from cuda_agent.tasks.dataset.folder import graphs_of, measured_on, passing, read_tasks
from cuda_agent.tasks.decontaminate.capture import capturing
from cuda_agent.tasks.decontaminate.references import load_references
from cuda_agent.tasks.decontaminate.stage import SIMILARITY_FILE, THRESHOLD, compare
from cuda_agent.workspace.sandbox import resolve_level

AgainstArg = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        metavar="PATH",
        help="Evaluation set: a folder, .py, .parquet, a saved data set, a fingerprint file, or a name on Hugging Face "
        "(repeatable).",
    ),
]
StackArg = Annotated[
    str | None, typer.Option("--stack", metavar="HASH", help="Whose measurements count, where there are several.")
]
MemoryArg = Annotated[int, typer.Option("--memory-mib", min=1, help="What an evaluation task's process may hold.")]


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set, with its candidates.")],
    against: AgainstArg = None,
    threshold: Annotated[
        float, typer.Option("--threshold", min=0.0, max=1.0, help="Similarity from which on a task is left out.")
    ] = THRESHOLD,
    copies: Annotated[int, typer.Option("--copies", min=1, help="Tasks of the set that may be alike.")] = 1,
    stack: StackArg = None,
    device: DeviceArg = DeviceOption.CPU,
    memory_mib: MemoryArg = MEMORY_MIB,
    sandbox: SandboxArg = SandboxOption.AUTO,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Compare every task with every evaluation task, and with the tasks before it, by two independent tests."""
    with ProgressView("tasks decontaminate") as view:
        capture = capturing(resolve_device(device.value), resolve_level(sandbox.value), memory_mib)
        references = load_references(against or (), capture, lambda text: view("references", text))
        measured = measured_on(directory, stack)
        compared = compare(
            passing(read_tasks(directory), measured),
            graphs_of(measured),
            references,
            against=against or (),
            threshold=threshold,
            copies=copies,
            say=lambda text: view("compare", text),
        )
    compared.write(directory)
    account = compared.account
    if as_json:
        emit(account.to_json())
        return 0
    say(f"{account.kept} of {account.tasks} tasks are kept: {directory / SIMILARITY_FILE}")
    say(f"too similar to an evaluation task: {account.similar_syntax}; with the graph of one: {account.same_graph}")
    say(f"duplicates: {account.duplicates}")
    without = account.references - account.references_with_graph
    if without:
        say(f"{without} evaluation tasks have no operator graph: they were compared by syntax only")
    if account.tasks_with_graph < account.tasks:
        say(f"{account.tasks - account.tasks_with_graph} tasks were not measured: compared by syntax only")
    return 0
