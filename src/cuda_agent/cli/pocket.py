"""cuda-agent pocket: the small preset's tasks, the table of all its choices, searches compared."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cuda_agent.cli.support.output import CommandAnswer, DebugArg, answers, say
from cuda_agent.cli.support.settings import SetArg, TrainingArg, command_group
from cuda_agent.core.assets import filled
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import UsageError
from cuda_agent.core.lines import append

if TYPE_CHECKING:
    from cuda_agent.training.evaluate import SearchComparison
    from cuda_agent.training.pocket.table import PlanChoice
    from cuda_agent.training.summary import Summary

app = command_group(
    "pocket", "Commands of the small training preset: choose tasks, measure their choices, compare searches."
)

FolderArg = Annotated[Path, typer.Option("--out", help="Folder of the training.")]


@app.command("tasks")
def tasks(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of composed candidates.")],
    out: Annotated[Path, typer.Option("--out", help="File to write.")] = Path("data/pocket.jsonl"),
    train: Annotated[int, typer.Option("--train", min=1, help="Number of tasks to train on.")] = 22,
    held_out: Annotated[int, typer.Option("--held-out", min=1, help="Number of tasks that are only evaluated.")] = 10,
    first: Annotated[int, typer.Option("--first", min=1, help="Candidates to look at, the first ones.")] = 200,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the split.")] = 0,
    device: Annotated[Device, typer.Option("--device", help="Device whose plans are counted.")] = Device.CUDA,
    debug: DebugArg = False,
) -> int:
    """Choose tasks with several plans, split by operator graph."""
    from cuda_agent.tasks.filter.run import read_candidates
    from cuda_agent.training.environment.judges import Judges
    from cuda_agent.training.pocket.choose import choose

    candidates = read_candidates(folder)[:first]
    if out.exists():
        raise UsageError(f"{out} exists", "Choose another --out")
    with Judges(folder / "pocket", JudgeOptions(device=Device.CPU)) as judges:
        found = choose(candidates, judges, device=device, train=train, held_out=held_out, seed=seed, progress=say)
    append(out, found)
    say(f"{len(found)} tasks: {out}")
    return 0


@app.command("fill")
@answers
def fill(
    config: TrainingArg,
    out: FolderArg,
    limit_s: Annotated[float, typer.Option("--limit-s", min=1, help="Begin no group of tasks after this time.")] = 500,
    group: Annotated[int, typer.Option("--group", min=1, help="Tasks measured at a time.")] = 6,
    settings: SetArg = None,
) -> CommandAnswer:
    """Measure every choice of every task that isn't known yet. Repeat the command until the table is whole."""
    from cuda_agent.training.config import read_options
    from cuda_agent.training.environment.opening import EnvironmentOptions, Opening
    from cuda_agent.training.pocket import table

    options = read_options(config, settings or ())
    environment = EnvironmentOptions.parse(options.environment)
    with Opening(environment, options.device, out, say).judges() as (judges, train, held):
        every = [*held, *train]
        done = table.fill(judges, every, limit_s=limit_s, group=group, progress=say)
        rows = [_row(task.name, task.split or "", table.table(judges, task)) for task in every]
    state = "the table is whole" if done.whole else "call again for the rest"
    refused = f", {done.refused} of tasks that can't be judged" if done.refused else ""
    ending = f"{done.known} of {done.wanted} choices known{refused} after {done.seconds:.0f} s: {state}"
    return CommandAnswer(
        {"known": done.known, "wanted": done.wanted, "failed": done.failed, "tasks": rows},
        [*("  ".join(f"{key} {value}" for key, value in row.items()) for row in rows), ending],
        [f"{name} can't be judged: {reason}" for name, reason in done.failed.items()],
    )


def _row(name: str, split: str, rows: "Sequence[PlanChoice]") -> dict[str, object]:
    from cuda_agent.training.pocket.table import best_us, spread

    best, wide = best_us(rows), spread(rows)
    known = [one for one in rows if one.evaluation is not None]
    fastest = next((one for one in rows if best is not None and one.us == best), None)
    ratio = fastest.ratio if fastest is not None else None
    return {
        "task": name,
        "split": split,
        "choices": len(rows),
        "known": len(known),
        "passed": sum(one.us is not None for one in known),
        "best_us": None if best is None else round(best, 2),
        "spread": None if wide is None else round(wide, 2),
        "best": "" if fastest is None else f"{fastest.name} {fastest.setting}",
        "over_matched": None if ratio is None else round(ratio, 2),
    }


@app.command("compare")
@answers
def compare(
    config: TrainingArg,
    out: FolderArg,
    budget: Annotated[int, typer.Option("--budget", min=1, help="Evaluations that each search may make.")] = 16,
    trained: Annotated[str, typer.Option("--trained", help="Stage whose policy is compared.")] = "ppo",
    settings: SetArg = None,
) -> CommandAnswer:
    """Count the evaluations that each search, trained or not, needs to reach 95 % of the best choice's speed."""
    from cuda_agent.training.config import read_options
    from cuda_agent.training.environment.opening import EnvironmentOptions, Opening
    from cuda_agent.training.held_out import HELD_OUT, compare_training

    options = read_options(config, settings or ())
    stages = {"trained": trained, "base": "base"}
    players = {name: out / HELD_OUT / stage / f"{stage}.jsonl" for name, stage in stages.items()}
    opening = Opening(EnvironmentOptions.parse(options.environment), options.device, out, say)
    found = compare_training(opening, players, budget=budget)
    return CommandAnswer(found, [_filled("compare", found=found)], _left_out(found))


def _left_out(searches: "SearchComparison") -> list[str]:
    left = len(searches.left_out)
    return [f"Left out, since no choice has a time: {left} tasks"] if left else []


@app.command("summary")
@answers
def summary(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Folders of trainings; the first one has the full recipe.")
    ],
    budget: Annotated[int, typer.Option("--budget", min=1, help="Evaluations that each search may make.")] = 16,
    memo: Annotated[Path | None, typer.Option("--memo", help="Folder of the table, if not the first run's.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder that gets summary.json.")] = None,
) -> CommandAnswer:
    """Compare trainings with other seeds and ablations: held-out results, and evaluations to 95 % of the best."""
    from cuda_agent.training.summary import summarize

    found = summarize(runs, budget=budget, memo=memo, progress=say)
    if out is not None:
        found.write(out)
    return CommandAnswer(found, [_summarized(found)], _left_out(found.searches))


def _summarized(found: "Summary") -> str:
    # Gaps to the same search follow each other.
    against = {
        search.name: [
            list(gaps)
            for _, gaps in groupby(found.gaps.get(search.name, ()), key=lambda gap: gap.metric.partition(" - ")[2])
        ]
        for search in found.searches.searches
    }
    return _filled("summary", found=found, against=against)


def _filled(name: str, **values: Any) -> str:
    return filled(Path(__file__).parent / "texts" / f"pocket-{name}.txt.j2", **values).removesuffix("\n")
