"""cuda-agent tasks crawl, tasks compose, tasks import"""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.output import CommandAnswer, ProgressView, answers
from cuda_agent.cli.support.settings import KeyFileArg, complete_model, with_settings
from cuda_agent.core.settings import Settings
from cuda_agent.llm.client import make_client, prepare
from cuda_agent.tasks.compose.builtin import BuiltinComposer
from cuda_agent.tasks.compose.language_model import LanguageModelComposer, RecordedAnswers
from cuda_agent.tasks.compose.run import Composer, compose_by
from cuda_agent.tasks.compose.sizing import Target
from cuda_agent.tasks.crawl import crawl as crawling
from cuda_agent.tasks.crawl.trials import TrialOptions, default_workers
from cuda_agent.tasks.dataset.importing import read_published, write_candidates
from cuda_agent.tasks.options import ComposeRunOptions, CrawlOptions
from cuda_agent.tasks.records import CANDIDATES_FILE, Seed
from cuda_agent.workspace.sandbox import resolve_level


@with_settings(CrawlOptions)
def crawl(
    options: CrawlOptions,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set; made if it is missing.")],
) -> CommandAnswer:
    """Find seeds in the installed torch and transformers. Each seed is run; the others are listed with a reason."""
    with ProgressView("tasks crawl") as view:
        way = TrialOptions(
            resolve_level(options.sandbox), options.workers or default_workers(), lambda text: view("crawl", text)
        )
        found = crawling.crawl(options.libraries, way)
    found.write(directory)
    seeds = Counter(seed.library for seed in found.seeds)
    operators = Counter(library for library, _ in {(seed.library, seed.operator) for seed in found.seeds})
    return CommandAnswer(
        {"seeds": seeds, "operators": operators, "left_out": {"all": len(found.left_out)}},
        said=[
            *(f"{name}: {count} seeds" for name, count in seeds.items()),
            f"{len(found.left_out)} callables left out, with their reasons in {directory / crawling.LEFT_OUT_FILE}",
            f"{directory / crawling.SEEDS_FILE}",
        ],
    )


@with_settings(ComposeRunOptions, without=("llm.context_tokens", "llm.reasoning", "llm.tools", "llm.dialogue"))
def compose(
    settings: Settings,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set, with its seeds.")],
    api_key_file: KeyFileArg = None,
) -> CommandAnswer:
    """Compose candidates from the folder's seeds, and append them to its file."""
    complete_model(settings, "llm", "composer", settings.get("composer", "builtin"))
    options = settings.parse(ComposeRunOptions)
    model = options.llm
    with ProgressView("tasks compose") as view:

        def composer(seeds: tuple[Seed, ...], target: Target) -> Composer:
            if model is None:
                return BuiltinComposer(seeds, options.seed, target)
            client = make_client(model, prepare(model, api_key_file), lambda text: view("model", text))
            return LanguageModelComposer(seeds, options.seed, target, RecordedAnswers(directory, model.model, client))

        made = compose_by(
            directory, options, options.seed, options.count, composer, lambda text: view("compose", text),
            model=None if model is None else model.model,
        )  # fmt: skip
    return CommandAnswer(
        {"found": made.found, "added": made.added, "skipped": made.skipped},
        said=[
            *(f"{number}: {reason}" for number, reason in made.skipped.items()),
            f"{made.found} tasks were there, {made.added} added: {directory / CANDIDATES_FILE}",
        ],
    )


@answers
def import_published(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Parquet file with columns ops, data_source, code.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the new data set.")],
) -> CommandAnswer:
    """Read a file of the published data set's format as candidates of a new folder."""
    tasks = read_published(file)
    path = write_candidates(out, tasks)
    return CommandAnswer({"file": str(path), "tasks": len(tasks)}, said=[f"{len(tasks)} tasks: {path}"])
