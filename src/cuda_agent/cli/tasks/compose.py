"""cuda-agent tasks compose"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.language_model import complete_model
from cuda_agent.cli.support.options import DebugArg, JsonArg, KeyFileArg
from cuda_agent.cli.support.output import ProgressView, emit, say
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.core.settings import Settings
from cuda_agent.llm.client import make_client, prepare
from cuda_agent.tasks.compose.builtin import BuiltinComposer
from cuda_agent.tasks.compose.language_model import LanguageModelComposer, RecordedAnswers
from cuda_agent.tasks.compose.rates import rates_for
from cuda_agent.tasks.compose.run import (
    Composer,
    ComposeSettings,
    compose,
    digest_of,
    library_versions,
    read_seeds,
    runs_with,
    settle,
)
from cuda_agent.tasks.compose.sizing import Target
from cuda_agent.tasks.options import ComposeRunOptions
from cuda_agent.tasks.store import CANDIDATES_FILE


@with_settings(ComposeRunOptions, without=("llm.context_tokens", "llm.reasoning", "llm.tools"))
def command(
    settings: Settings,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set, with its seeds.")],
    api_key_file: KeyFileArg = None,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Compose candidates from the folder's seeds; goes on where the folder's file ends."""
    complete_model(settings, "llm", "composer", settings.get("composer", "builtin"))
    options = settings.parse(ComposeRunOptions)
    seeds = runs_with(read_seeds(directory), options.runs_with)
    low, high = options.window_ms
    target = Target(low_ms=low, high_ms=high, memory_gb=options.memory_gb, rates=rates_for(options.stack))
    chosen: Composer
    with ProgressView("tasks compose") as view:
        if options.llm is not None:
            client = make_client(options.llm, prepare(options.llm, api_key_file), lambda text: view("model", text))
            answers = RecordedAnswers(directory, options.llm.model, client)
            chosen = LanguageModelComposer(seeds, options.seed, target, answers)
        else:
            chosen = BuiltinComposer(seeds, options.seed, target)
        settle(directory, ComposeSettings(
            composer=chosen.name, seed=options.seed, target=target, seeds_digest=digest_of(seeds),
            model=options.llm.model if options.llm is not None else None,
            library_versions=library_versions(seeds), runs_with=options.runs_with,
        ))  # fmt: skip
        made = compose(directory, chosen, options.count, lambda text: view("compose", text))
    if as_json:
        emit(json.dumps({"found": made.found, "added": made.added, "skipped": made.skipped}, indent=1))
    else:
        for number, reason in made.skipped.items():
            say(f"{number}: {reason}")
        say(f"{made.found} tasks were there, {made.added} added: {directory / CANDIDATES_FILE}")
    return 0
