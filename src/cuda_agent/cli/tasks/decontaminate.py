"""cuda-agent tasks decontaminate"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import ProgressView, emit, say
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.tasks.dataset.folder import graphs_of, measured_on, passing, read_tasks
from cuda_agent.tasks.decontaminate.references import capturing, load_references
from cuda_agent.tasks.decontaminate.stage import SIMILARITY_FILE, compare
from cuda_agent.tasks.options import CPU, DecontaminateOptions
from cuda_agent.workspace.sandbox import resolve_level


@with_settings(DecontaminateOptions, base=CPU)
def command(
    options: DecontaminateOptions,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set, with its candidates.")],
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Compare every task with every evaluation task, and with the tasks before it, by two independent tests."""
    with ProgressView("tasks decontaminate") as view:
        capture = capturing(options.device, resolve_level(options.sandbox), options.memory_mib)
        references = load_references(options.against, capture, lambda text: view("references", text))
        measured = measured_on(directory, options.stack)
        compared = compare(
            passing(read_tasks(directory), measured),
            graphs_of(measured),
            references,
            against=options.against,
            threshold=options.threshold,
            copies=options.copies,
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
