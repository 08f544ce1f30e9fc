"""cuda-agent tasks kernel"""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.output import CommandAnswer, ProgressView
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.core.errors import UsageError
from cuda_agent.tasks import kernel_set
from cuda_agent.tasks.crawl.trials import default_workers
from cuda_agent.tasks.dataset.importing import is_exported, read_exported
from cuda_agent.tasks.decontaminate.references import load_references
from cuda_agent.tasks.options import KernelOptions
from cuda_agent.workspace.sandbox import resolve_level


@with_settings(KernelOptions)
def make(
    options: KernelOptions,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of an exported data set.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the tasks, for environment.tasks.")],
) -> CommandAnswer:
    """Make the tasks of preset `kernel` from a data set: small ones that fit one file, and 48 held-out graphs."""
    if not is_exported(directory):
        raise UsageError(f"{directory} is no exported data set", "Give the folder of one, such as data/dataset")
    with ProgressView("tasks kernel") as view:
        against = options.against
        references = load_references(against, None, lambda text: view("references", text)) if against else []
        drafts = [*kernel_set.of_dataset(*read_exported(directory)), *kernel_set.written(options.seed)]
        workers = options.workers or default_workers()
        tasks = kernel_set.checked(drafts, resolve_level(options.sandbox), workers, lambda text: view("check", text))
    clean = kernel_set.without(tasks, references)
    train, held_out = kernel_set.divide(clean, options.seed)
    kernel_set.write(out, train, held_out)
    families = Counter(one.family for one in train)
    counts = {"train": len(train), "held_out": len(held_out), "left_out": len(tasks) - len(clean)}
    return CommandAnswer(
        {"folder": str(out), **counts, "families": families},
        said=[
            *(f"{name}: {count}" for name, count in families.items()),
            f"{len(tasks) - len(clean)} tasks equal an evaluation task and are left out",
            f"{len(train)} tasks to train on, {len(held_out)} held out: {out}",
        ],
    )
