"""The whole crawl: entries of the catalogue that the installed libraries have, tried, and what was left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.core.enums import SandboxLevel
from cuda_agent.core.errors import UsageError
from cuda_agent.core.files import write_durably
from cuda_agent.core.record import Record
from cuda_agent.tasks.crawl import catalogue
from cuda_agent.tasks.crawl.families import listed
from cuda_agent.tasks.crawl.trials import run_jobs, try_entries
from cuda_agent.tasks.records import LeftOut, Seed

SEEDS_FILE = "seeds.jsonl"
LEFT_OUT_FILE = "left_out.jsonl"


@dataclass(frozen=True)
class Crawl:
    """What a crawl found, in the order of the catalogue."""

    seeds: tuple[Seed, ...]
    left_out: tuple[LeftOut, ...]

    def write(self, folder: Path) -> None:
        """Both files, whole. Raises StoreError when the disk refuses."""
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(folder / SEEDS_FILE, _lines(self.seeds))
        write_durably(folder / LEFT_OUT_FILE, _lines(self.left_out))


def _lines(records: Sequence[Record]) -> str:
    return "".join(record.model_dump_json() + "\n" for record in records)


def crawl_torch(level: SandboxLevel, say: Callable[[str], None]) -> Crawl:
    """Raises SandboxError, UsageError when a page of the catalogue is broken."""
    entries = catalogue.read()
    outcomes = try_entries(entries, level, say)
    seeds, left_out = [], []
    for entry, outcome in zip(entries, outcomes, strict=True):
        if "reason" in outcome:
            left_out.append(LeftOut(name=entry.seed.name, reason=outcome["reason"]))
        else:
            seeds.append(entry.seed)
    return Crawl(tuple(seeds), tuple(left_out))


def crawl_transformers(level: SandboxLevel, say: Callable[[str], None]) -> Crawl:
    """One seed for each graph of operators, that of the first family which has it. Raises DeviceError, SandboxError."""
    found, unseen = listed()
    jobs = [{"module": item.module, "name": item.name} for item in found]
    outcomes = run_jobs(jobs, "cuda_agent.tasks.crawl.layers", level, say)
    seeds: list[Seed] = []
    left_out = list(unseen)
    owners: dict[str, str] = {}
    for item, outcome in zip(found, outcomes, strict=True):
        reason = outcome.get("reason")
        if reason is None and outcome["graph"] in owners:
            reason = f"the same operators as {owners[outcome['graph']]}"
        if reason is not None:
            left_out.append(LeftOut(name=item.full_name, reason=reason))
            continue
        owners[outcome["graph"]] = item.full_name
        seeds.append(Seed.model_validate(outcome["seed"]))
    return Crawl(tuple(seeds), tuple(left_out))


def crawl(libraries: Sequence[str], level: SandboxLevel, say: Callable[[str], None]) -> Crawl:
    """Seeds of the named libraries. Raises UsageError for another library, SandboxError."""
    unknown = [name for name in libraries if name not in _CRAWLERS]
    if unknown:
        raise UsageError(f"No crawler for {unknown[0]!r}", f"Known are {', '.join(_CRAWLERS)}")
    found = [_CRAWLERS[name](level, say) for name in dict.fromkeys(libraries)]
    return Crawl(
        tuple(seed for part in found for seed in part.seeds), tuple(item for part in found for item in part.left_out)
    )


_CRAWLERS = {"torch": crawl_torch, "transformers": crawl_transformers}
