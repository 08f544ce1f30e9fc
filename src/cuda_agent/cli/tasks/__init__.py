"""cuda-agent tasks: from libraries to clean, timed, decontaminated problems."""

from cuda_agent.cli.support.settings import command_group
from cuda_agent.cli.tasks import candidates, dataset, kernel, measurements, similarity

app = command_group("tasks", "Make data sets of tasks: crawl, compose, filter, decontaminate, export.")
app.command("crawl")(candidates.crawl)
app.command("compose")(candidates.compose)
app.command("filter")(measurements.filter_candidates)
app.command("merge")(measurements.merge)
app.command("build")(dataset.build)
app.command("decontaminate")(similarity.decontaminate)
app.command("fingerprint")(similarity.fingerprint)
app.command("export")(dataset.export)
app.command("kernel")(kernel.make)
app.command("import")(candidates.import_published)
app.command("stats")(dataset.stats)
