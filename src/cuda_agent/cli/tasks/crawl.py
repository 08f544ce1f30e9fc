"""cuda-agent tasks crawl"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import ProgressView, emit, say
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.tasks.crawl.crawl import LEFT_OUT_FILE, SEEDS_FILE, Crawl, crawl
from cuda_agent.tasks.crawl.trials import TrialOptions, default_workers
from cuda_agent.tasks.options import CrawlOptions
from cuda_agent.workspace.sandbox import resolve_level


@with_settings(CrawlOptions)
def command(
    options: CrawlOptions,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set; made when missing.")],
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Find seeds in the installed torch and transformers: each is run, and what is left out has its reason."""
    with ProgressView("tasks crawl") as view:
        way = TrialOptions(
            resolve_level(options.sandbox), options.workers or default_workers(), lambda text: view("crawl", text)
        )
        found = crawl(options.libraries, way)
    found.write(directory)
    if as_json:
        emit(json.dumps(_summary(found), indent=1))
    else:
        for name, count in _summary(found)["seeds"].items():
            say(f"{name}: {count} seeds")
        say(f"{len(found.left_out)} callables left out, with their reasons in {directory / LEFT_OUT_FILE}")
        say(f"{directory / SEEDS_FILE}")
    return 0


def _summary(found: Crawl) -> dict[str, dict[str, int]]:
    return {
        "seeds": dict(Counter(seed.library for seed in found.seeds)),
        "operators": dict(Counter(library for library, _ in {(seed.library, seed.operator) for seed in found.seeds})),
        "left_out": {"all": len(found.left_out)},
    }
