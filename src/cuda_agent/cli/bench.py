"""cuda-agent bench, cuda-agent compare"""

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cuda_agent.bench import compare as comparing
from cuda_agent.bench.directory import BenchDirectory
from cuda_agent.bench.options import DEFAULTS, BenchOptions
from cuda_agent.bench.run import Bench, begin, go_on
from cuda_agent.bench.suite import read_suite
from cuda_agent.cli.support.output import CommandAnswer, DebugArg, JsonArg, answers, say
from cuda_agent.cli.support.settings import KeyFileArg, PricesArg, complete_run, with_settings
from cuda_agent.core.baselines import BASELINES
from cuda_agent.core.bench import BenchResult
from cuda_agent.core.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError
from cuda_agent.core.plain import plain
from cuda_agent.core.settings import Settings
from cuda_agent.report.tables.comparison import comparison_view
from cuda_agent.report.tables.metrics import metrics_view
from cuda_agent.report.tables.suite import RunRow, suite_view
from cuda_agent.report.units import bounds, times


@with_settings(BenchOptions, without=("run.parallel",), base=DEFAULTS)
def bench(
    settings: Settings,
    suite: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SUITE…", help="Folders (level1/1_….py), data sets (ours, parquet, Hugging Face), files."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the benchmark.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the benchmark in --out, if there is one.")] = False,
    api_key_file: KeyFileArg = None,
    prices: PricesArg = None,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Run a policy on a suite of tasks. Each result is written at once, the metrics at the end."""
    complete_run(settings, prices, "run.")
    options = settings.parse(BenchOptions)
    run = _begun(suite or [], options, out, resume=resume)
    run.key_file, run.jobs, run.stop_after_s = api_key_file, options.jobs, options.stop_after_s
    run.told, run.say = _tell, say
    return _play(run, as_json=as_json)


def _begun(suite: list[str], options: BenchOptions, out: Path | None, *, resume: bool) -> Bench:
    if resume and out is None:
        raise UsageError("--resume needs the run's folder", "Add --out DIR")
    if out is None:
        out = Path("runs") / f"bench-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    if resume and BenchDirectory(out).was_begun:
        # Without SUITE the run's own options hold, so none may be given.
        same = options if suite else None
        here = Settings(values={"run": {"judge": {"device": options.run.judge.device}}}).over(DEFAULTS)
        if not suite and here.parse(BenchOptions).differences(options):
            raise UsageError("Options of a run are fixed when it is begun", "Leave them out, or repeat SUITE with all")
        return go_on(out, suite=suite, options=same, say=say)
    if not suite:
        if resume:
            raise UsageError(f"{out} holds no benchmark run", "Begin one: cuda-agent bench SUITE --out DIR")
        raise UsageError("No SUITE given", "Name a folder of task files or a data set, or --resume --out DIR")
    command_line = ("cuda-agent", *sys.argv[1:])
    return begin(suite, read_suite(suite), options, out, policy=options.run.policy, command=command_line)


def _play(bench: Bench, *, as_json: bool) -> int:
    code = EXIT_OK
    try:
        metrics = bench.play()
    except KeyboardInterrupt:
        metrics, code = bench.measure(), EXIT_INTERRUPTED
    results = bench.directory.results()
    tasks = [suite_view([RunRow(result.task.id, result) for result in results]), ""] if results else []
    document = {
        "schema_version": 1,
        "directory": str(bench.directory.path),
        "results": list(map(_facts, results)),
        "metrics": metrics.model_dump(mode="json"),
    }
    CommandAnswer(document, [*tasks, metrics_view(metrics)]).print(as_json=as_json)
    if code == EXIT_INTERRUPTED:
        say(f"stopped; go on with: cuda-agent bench --resume --out {bench.directory.path}")
    else:
        say(f"{bench.directory.path}")
    return code


def _tell(result: BenchResult, done: int, tasks: int) -> None:
    row = RunRow(result.task.id, result)
    known = [(name, ratio) for name in BASELINES if (ratio := row.ratio(name))]
    ratios = [f"{times(ratio.value)} {bounds(ratio.low, ratio.high)} over {name}" for name, ratio in known]
    said = ", ".join(ratios) or " ".join(row.note.split())[:160]
    say(plain(f"[{done}/{tasks}] {result.task.id}: {row.state}: {said} ({result.wall_s:.0f} s)"))


def _facts(result: BenchResult) -> dict[str, Any]:
    row = RunRow(result.task.id, result)
    return {
        "task": result.task.id,
        "state": row.state,
        "note": row.note,
        "reward": result.reward.value if result.reward is not None else None,
        "latency_us": row.ours.latency_us if row.ours is not None else None,
        "ratios": {name: ratio.value if (ratio := row.ratio(name)) else None for name in BASELINES},
        "roofline": result.task.roofline,
        "wall_s": result.wall_s,
    }


@answers
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN…", help="Folders of benchmarks; the first is A.")],
    anyway: Annotated[bool, typer.Option("--anyway", help="Compare even if the stacks differ.")] = False,
) -> CommandAnswer:
    """Compare benchmarks task by task, and name the differences that are more than noise."""
    comparison = comparing.compare(runs)
    if not comparison.same_stack and not anyway:
        stacks = "; ".join(f"{side.directory}: {one}" for side in comparison.sides for one in side.stack_differences)
        raise UsageError(f"The runs were made on different stacks: {stacks}", "Add --anyway to see them")
    for side in comparison.sides[1:]:
        for said in (*side.stack_differences, *side.option_differences, *side.notes):
            say(f"{side.directory}: {said}")
    return CommandAnswer(comparison, [comparison_view(comparison)])
