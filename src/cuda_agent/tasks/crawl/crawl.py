"""The whole crawl: it tries the catalogue's entries that the installed libraries have, and lists the callables that
were left out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cuda_agent.core.assets import tables
from cuda_agent.core.errors import UsageError, WorkerError
from cuda_agent.core.lines import write_lines
from cuda_agent.tasks.crawl import catalogue
from cuda_agent.tasks.crawl.families import listed
from cuda_agent.tasks.crawl.trials import TrialOptions, run_jobs, try_entries
from cuda_agent.tasks.records import LeftOut, Seed

SEEDS_FILE = "seeds.jsonl"
LEFT_OUT_FILE = "left_out.jsonl"
_OFFERS = "cuda_agent.tasks.crawl.offers"
_LAYERS = "cuda_agent.tasks.crawl.layers"


@dataclass
class Crawl:
    """The results of a crawl, in the order of the catalogue."""

    seeds: list[Seed] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Writes both files. Raises StoreError."""
        write_lines(folder / SEEDS_FILE, self.seeds)
        write_lines(folder / LEFT_OUT_FILE, self.left_out)

    def leave_out(self, name: str, reason: str) -> None:
        self.left_out.append(LeftOut(name=name, reason=reason))

    def sort(self, names: Sequence[str], outcomes: Sequence[dict[str, Any]], owners: dict[str, str]) -> None:
        """Adds seeds of new graphs, and leaves out other callables. `owners` maps a graph to the name of its seed."""
        for name, outcome in zip(names, outcomes, strict=True):
            owner = owners.get(outcome.get("graph", ""))
            if owner is not None:
                self.leave_out(name, f"the same operators as {owner}")
            elif "reason" in outcome:
                self.leave_out(name, outcome["reason"])
            else:
                owners[outcome["graph"]] = name
                self.seeds.append(Seed.model_validate(outcome["seed"]))


def _crawl_torch(options: TrialOptions, found: Crawl) -> None:
    """Adds the catalogue's entries that the installed torch has, then its element-wise operators that no page
    describes."""
    entries = catalogue.read()
    owners: dict[str, str] = {}
    for entry, outcome in zip(entries, try_entries(entries, options), strict=True):
        if "reason" in outcome:
            found.leave_out(entry.seed.name, outcome["reason"])
        else:
            found.seeds.append(entry.seed)
            owners.setdefault(outcome["graph"], entry.seed.name)
    described = {name for entry in entries for name in catalogue.callees(entry.seed)}
    offered = run_jobs([{"list": True}], _OFFERS, replace(options, workers=1))[0]
    if "names" not in offered:
        raise WorkerError(f"Torch can't be listed: {offered['reason']}", "Run `cuda-agent doctor`")
    spelled = {name.rpartition(".")[2]: name for name in sorted(described)}
    others = []
    for name in offered["names"]:
        own = name.rpartition(".")[2]
        if name not in described and own not in spelled:
            others.append(name)
        elif name not in described:
            found.leave_out(name, f"another spelling of {spelled[own]}")
    found.sort(others, run_jobs([{"name": name} for name in others], _OFFERS, options), owners)


def _crawl_transformers(options: TrialOptions, found: Crawl) -> None:
    """Adds one seed for each graph of operators, from the first family that has it."""
    layers, unseen = listed()
    found.left_out += unseen
    outcomes = run_jobs([{"module": item.module, "name": item.name} for item in layers], _LAYERS, options)
    found.sort([item.full_name for item in layers], outcomes, {})


def crawl(libraries: Sequence[str], options: TrialOptions) -> Crawl:
    """Returns the seeds of the named libraries. Raises UsageError for another library or when a page of the catalogue
    is malformed, DeviceError, SandboxError."""
    unknown = [name for name in libraries if name not in _CRAWLERS]
    if unknown:
        raise UsageError(f"No crawler for {unknown[0]!r}", f"Known: {', '.join(_CRAWLERS)}")
    found = Crawl()
    for name in dict.fromkeys(libraries):
        _CRAWLERS[name](options, found)
    return Crawl(list(marked(found.seeds)), found.left_out)


def marked(seeds: Iterable[Seed]) -> tuple[Seed, ...]:
    """Returns the seeds, each with the oldest version of its library that has it, as listed in `crawl.yaml`."""
    return tuple(seed.model_copy(update={"needs": _needs(seed)}) for seed in seeds)


def _needs(seed: Seed) -> dict[str, str]:
    for version, names in tables(__file__).get(seed.library, {}).items():
        if seed.name in names or seed.name.split(".")[0] in names:
            return {seed.library: version}
    return {}


_CRAWLERS = {"torch": _crawl_torch, "transformers": _crawl_transformers}
