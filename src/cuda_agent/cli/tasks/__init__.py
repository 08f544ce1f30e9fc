"""cuda-agent tasks: from libraries to clean, timed, decontaminated problems."""

from __future__ import annotations

import typer

from cuda_agent.cli.tasks import candidates, dataset, measurements, similarity

app = typer.Typer(
    name="tasks",
    help="Make data sets of tasks: crawl, compose, filter, decontaminate, export.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("crawl")(candidates.crawl)
app.command("compose")(candidates.compose)
app.command("filter")(measurements.filter_candidates)
app.command("merge")(measurements.merge)
app.command("build")(dataset.build)
app.command("decontaminate")(similarity.decontaminate)
app.command("fingerprint")(similarity.fingerprint)
app.command("export")(dataset.export)
app.command("import")(candidates.import_published)
app.command("stats")(dataset.stats)
