"""Builds a dataset from one configuration: it crawls, then composes, filters and decontaminates until enough tasks are
left, and exports them.

Each stage continues where its files end, so a build that was killed is just started again. The same recorded
measurements and configuration give the same dataset, because the number of candidates in the next round depends on
nothing else.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from cuda_agent.core.config import Configuration
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import TaskError, UsageError
from cuda_agent.core.files import locked, write_durably
from cuda_agent.core.lines import read_lines, write_lines
from cuda_agent.core.settings import Settings
from cuda_agent.tasks.captured import MEMORY_MIB
from cuda_agent.tasks.choose import choose
from cuda_agent.tasks.compose.builtin import BuiltinComposer
from cuda_agent.tasks.compose.rates import rates_for
from cuda_agent.tasks.compose.run import compose_by
from cuda_agent.tasks.crawl.crawl import SEEDS_FILE, crawl
from cuda_agent.tasks.crawl.trials import TrialOptions, default_workers
from cuda_agent.tasks.dataset.export import Chosen, export
from cuda_agent.tasks.dataset.folder import Stages, graphs_of, passing, read_tasks
from cuda_agent.tasks.decontaminate.references import EvaluationTask, capturing, load_references
from cuda_agent.tasks.decontaminate.stage import THRESHOLD, SealedComparison, compare
from cuda_agent.tasks.filter.funnel import funnel
from cuda_agent.tasks.filter.measurements import Measurements, merge, read_all, read_measured
from cuda_agent.tasks.filter.options import FilterOptions, FilterSettings
from cuda_agent.tasks.filter.run import filter_folder
from cuda_agent.tasks.options import ComposeOptions, CopiesSetting, LibrariesSetting, ThresholdSetting
from cuda_agent.tasks.records import Seed
from cuda_agent.workspace.sandbox import resolve_level

EXPORT_FOLDER = "export"
_CONFIG_FILE = "build.json"
Say = Callable[[str, str], None]
#: The candidates of the first round for each wanted task, and those of later rounds for each task that is missing at
#: their rate.
_FIRST, _MORE = 1.15, 1.05


class BuildOptions(Configuration):
    """The options of a build. `against` are evaluation sets, as in `tasks decontaminate --against`. `candidates` is
    their number in the first round, by default a little more than the wanted tasks. `most_candidates` is the limit of
    all rounds."""

    folder: Path
    against: tuple[str, ...] = Field(min_length=1)
    tasks: int = Field(default=6000, ge=1)
    seed: int = 0
    #: A file of seeds; None crawls the installed libraries.
    seeds: Path | None = None
    libraries: LibrariesSetting = ("torch", "transformers")
    compose: ComposeOptions = ComposeOptions()
    filter: FilterSettings = FilterSettings()
    #: A recorded comparison with a sealed evaluation set (`tasks decontaminate --sealed`).
    sealed: Path | None = None
    threshold: ThresholdSetting = THRESHOLD
    copies: CopiesSetting = 1
    candidates: int | None = Field(default=None, ge=1)
    most_candidates: int | None = Field(default=None, ge=1)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads options from YAML or TOML, with paths relative to its folder. Raises UsageError."""
        options = Settings(path).parse(cls)
        rates_for(options.compose.stack)
        against = tuple(_beside(path, name) for name in options.against)
        changes: dict[str, Any] = {"folder": path.parent / options.folder, "against": against}
        for name in ("seeds", "sealed"):
            if getattr(options, name) is not None:
                changes[name] = path.parent / getattr(options, name)
        return options.model_copy(update=changes)


def _beside(path: Path, name: str) -> str:
    """Returns a path relative to the configuration's folder; the name of a dataset on the hub doesn't change."""
    there = path.parent / name
    return str(there) if there.exists() or name.startswith(".") else name


@dataclass(frozen=True)
class Build:
    """The result of a build: the counts of candidates, of those without a recorded measurement (they are left out), of
    those that passed every rule, and of the dataset by split."""

    folder: Path
    candidates: int
    unmeasured: int
    kept: int
    splits: dict[str, int]


def build(options: BuildOptions, device: Device, say: Say, *, recorded: str | None = None) -> Build:
    """Builds a dataset. `recorded` is a file of measurements, or the name of a stack with measurements in the folder
    (see `tasks filter`). With it nothing is measured, and candidates without a measurement are left out. Raises
    UsageError, TaskError where too few candidates pass, and the stages' errors."""
    folder = options.folder
    taken = None if recorded is None else _recorded(folder, recorded)
    seeds = None if options.seeds is None else _seeds_of(options.seeds)
    sealed = None if options.sealed is None else SealedComparison.read_file(options.sealed)
    _settle(options, folder)
    with locked(folder / ".build.lock"):
        return _build(options, device, say, taken, seeds, sealed)


def _build(
    options: BuildOptions,
    device: Device,
    say: Say,
    recorded: Measurements | None,
    seeds: list[Seed] | None,
    sealed: SealedComparison | None,
) -> Build:
    folder = options.folder
    filtering = FilterOptions(device=device, **options.filter.model_dump())
    level = resolve_level(filtering.sandbox)

    def measure(count: int) -> Measurements:
        if recorded is not None:
            return recorded
        done = filter_folder(folder, filtering, lambda text: say("filter", text), below=count)
        if done.left:
            raise TaskError(f"{len(done.left)} tasks couldn't be timed beside foreign load", "Run the build again")
        return read_measured(done.path)

    if recorded is not None and recorded.path.parent != folder:
        merge(folder, [recorded.path])
    if seeds is not None:
        write_lines(folder / SEEDS_FILE, seeds)
    elif not (folder / SEEDS_FILE).exists():
        trials = TrialOptions(level, default_workers(), lambda text: say("crawl", text))
        crawl(options.libraries, trials).write(folder)
    references = load_references(
        options.against,
        capturing(Device.CPU, level, MEMORY_MIB),
        lambda text: say("references", text),
    )
    most = options.most_candidates or 3 * options.tasks
    count = min(most, options.candidates or math.ceil(_FIRST * options.tasks))
    while True:
        kept, unmeasured, chosen = _round(options, count, measure, references, sealed, say)
        if chosen is not None:
            return Build(folder, count, unmeasured, kept, export(folder, folder / EXPORT_FOLDER, chosen))
        if unmeasured:
            raise UsageError(
                f"{unmeasured} of {count} candidates have no recorded measurement, too few are left",
                "Give --recorded measurements of all candidates, or measure here (without --recorded)",
            )
        say("build", f"{kept} of {count} candidates are left, {options.tasks} are wanted at the published shares")
        if count >= most:
            raise TaskError(
                f"Of {count} candidates {kept} are left, too few for {options.tasks} at the published shares",
                "See funnel.json for the most frequent failure, or raise most_candidates",
            )
        count = min(most, _next_count(count, kept, options.tasks))


def _recorded(folder: Path, name: str) -> Measurements:
    """Returns recorded measurements. Raises UsageError where `name` is neither a file nor a stack with measurements in
    the folder, StoreError."""
    path = Path(name)
    if name and path.is_file():
        return read_measured(path)
    stacks = {measured.stack_name: measured for measured in read_all(folder)}
    found = [measured for stack, measured in stacks.items() if name and stack.startswith(name)]
    if len(found) != 1:
        known = ", ".join(stacks) or "none"
        raise UsageError(
            f"{name!r} is neither a file nor a stack with measurements in {folder} (known: {known})",
            "Give --recorded a file of measurements, such as data/measured/h200.jsonl.gz",
        )
    return found[0]


def _seeds_of(path: Path) -> list[Seed]:
    """Returns the seeds of a file. Raises UsageError where there is no file, StoreError."""
    if not path.is_file():
        raise UsageError(f"No such file: {path}", "Give a file of seeds, or omit it to crawl")
    return read_lines(path, Seed)


def _round(
    options: BuildOptions,
    count: int,
    measure: Callable[[int], Measurements],
    references: Sequence[EvaluationTask],
    sealed: SealedComparison | None,
    say: Say,
) -> tuple[int, int, Chosen | None]:
    """Runs all stages on the candidates with numbers below `count`, even where the folder has more, so that a restarted
    build has the same rounds. Returns how many are left, how many aren't measured, and the dataset if it is enough."""
    folder = options.folder
    compose_candidates(options, count, lambda text: say("compose", text))
    measured = measure(count)
    tasks = [task for task in read_tasks(folder) if task.number < count]
    unmeasured = sum(task.task.key not in measured.by_key for task in tasks)
    compared = compare(
        passing(tasks, measured),
        graphs_of(measured),
        references,
        against=options.against,
        threshold=options.threshold,
        copies=options.copies,
        sealed=sealed,
        say=lambda text: say("decontaminate", text),
    )
    compared.write(folder)
    lines = {line.task_key: line for line in compared.lines}
    stages = Stages(tasks, measured, lines)
    funnel(tasks, measured.by_key, stages.found_later).write(folder)
    chosen = choose(stages.clean, options.tasks)
    made = None if chosen is None else Chosen(chosen, measured, lines, compared.account)
    return compared.account.kept, unmeasured, made


def compose_candidates(options: BuildOptions, count: int, say: Callable[[str], None]) -> None:
    """Composes the candidates with numbers below `count` that the folder doesn't have."""
    seed = options.seed
    compose_by(options.folder, options.compose, seed, count, lambda found, to: BuiltinComposer(found, seed, to), say)


def _next_count(count: int, kept: int, wanted: int) -> int:
    """Returns the next number of candidates: as many more as are missing at the rate of kept ones, and at least a
    twentieth more, because the missing ones may be of a rare kind."""
    rate = max(kept / count, 0.02)
    missing = max(0, wanted - kept)
    return count + max(math.ceil(_MORE * missing / rate), math.ceil(count / 20), 20)


def _settle(options: BuildOptions, folder: Path) -> None:
    """Writes the configuration. Raises UsageError where the folder has another one that isn't only smaller."""
    path = folder / _CONFIG_FILE
    values = options.model_dump(mode="json", exclude={"folder", "seeds", "sealed"})
    if path.exists():
        begun = json.loads(path.read_text())
        for name in ("seed", "libraries", "compose"):
            if begun.get(name) != values[name]:
                raise UsageError(f"{folder} was built with another {name}", "Build into another folder")
    write_durably(path, json.dumps(values, indent=1))
