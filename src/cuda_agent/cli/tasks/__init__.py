"""cuda-agent tasks: from libraries to clean, timed, decontaminated problems. One file a command."""

from __future__ import annotations

import typer

from cuda_agent.cli.tasks import (
    build,
    compose,
    crawl,
    decontaminate,
    export,
    filter,
    fingerprint,
    import_,
    merge,
    stats,
)

app = typer.Typer(
    name="tasks",
    help="Makes data sets of tasks: crawl, compose, filter, decontaminate, export.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


# Each command is a file of its own with `command`.
app.command("crawl")(crawl.command)
app.command("compose")(compose.command)
app.command("filter")(filter.command)
app.command("merge")(merge.command)
app.command("build")(build.command)
app.command("decontaminate")(decontaminate.command)
app.command("fingerprint")(fingerprint.command)
app.command("export")(export.command)
app.command("import")(import_.command)
app.command("stats")(stats.command)
