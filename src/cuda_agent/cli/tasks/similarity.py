"""cuda-agent tasks decontaminate, tasks fingerprint"""

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.output import CommandAnswer, ProgressView
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.core.files import write_durably
from cuda_agent.tasks.dataset.folder import graphs_of, measured_on, passing, read_tasks
from cuda_agent.tasks.decontaminate.references import capturing, load_references, write_fingerprints
from cuda_agent.tasks.decontaminate.stage import SIMILARITY_FILE, compare
from cuda_agent.tasks.options import CPU, DecontaminateOptions
from cuda_agent.workspace.sandbox import resolve_level


@with_settings(DecontaminateOptions, base=CPU)
def decontaminate(
    options: DecontaminateOptions,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set, with its candidates.")],
    sealed: Annotated[
        Path | None,
        typer.Option("--sealed", metavar="FILE", help="Write the keys of the tasks that equal an evaluation task."),
    ] = None,
) -> CommandAnswer:
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
    if sealed is not None:
        write_durably(sealed, compared.sealed().to_json() + "\n")
    account = compared.account
    said = [
        f"{account.kept} of {account.tasks} tasks are kept: {directory / SIMILARITY_FILE}",
        f"too similar to an evaluation task: {account.similar_syntax}; with the graph of one: {account.same_graph}",
        f"duplicates: {account.duplicates}",
    ]
    without = account.references - account.references_with_graph
    if without:
        said.append(f"{without} evaluation tasks have no operator graph: they were compared by syntax only")
    if account.tasks_with_graph < account.tasks:
        said.append(f"{account.tasks - account.tasks_with_graph} tasks were not measured: compared by syntax only")
    return CommandAnswer(account, said=said)


@with_settings(DecontaminateOptions, only=("device", "memory_mib", "sandbox"), base=CPU)
def fingerprint(
    options: DecontaminateOptions,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The evaluation set, as --against takes it.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write.")],
) -> CommandAnswer:
    """Write fingerprints of an evaluation set. Tasks can be compared with them; they hold no line of its source."""
    with ProgressView("tasks fingerprint") as view:
        capture = capturing(options.device, resolve_level(options.sandbox), options.memory_mib)
        found = write_fingerprints(out, path, capture, lambda text: view("fingerprint", text))
    graphs = sum(one.graph is not None for one in found)
    return CommandAnswer(
        {"file": str(out), "tasks": len(found), "graphs": graphs},
        said=[f"{len(found)} evaluation tasks, {graphs} of them with their operator graph: {out}"],
    )
