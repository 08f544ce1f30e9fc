"""cuda-agent bench"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cuda_agent.agent.device import resolve_device
from cuda_agent.agent.policies.registry import policy_name
from cuda_agent.bench.directory import BenchDirectory
from cuda_agent.bench.options import TIMING_BUDGET_S, TIMING_STOP, BenchOptions
from cuda_agent.bench.run import Bench, begin, go_on
from cuda_agent.bench.suite import read_suite
from cuda_agent.cli.support.language_model import (
    BaseUrlArg,
    ContextArg,
    ModelArg,
    PricesArg,
    ProtocolArg,
    ProtocolOption,
    ReasoningArg,
    ReasoningOption,
    TemperatureArg,
    ToolsArg,
    ToolsOption,
    language_model,
)
from cuda_agent.cli.support.options import (
    CostArg,
    DebugArg,
    DeviceArg,
    DeviceOption,
    GpuMinutesArg,
    JsonArg,
    KeyFileArg,
    MinutesArg,
    PrecisionArg,
    SandboxArg,
    SandboxOption,
    SeedOption,
    TokensArg,
    TritonArg,
    limits,
)
from cuda_agent.cli.support.output import emit, say, show
from cuda_agent.core.bench import BenchResult, Metrics
from cuda_agent.core.config import JudgeOptions, Limits, OptimizeOptions, TimingStop
from cuda_agent.core.enums import Precision
from cuda_agent.core.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError
from cuda_agent.report.plain import plain
from cuda_agent.report.rows import BASELINES
from cuda_agent.report.tables.metrics import metrics_view
from cuda_agent.report.tables.suite import RunRow, suite_view
from cuda_agent.report.units import bounds, times


def command(
    suite: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SUITE…", help="Folders (level1/1_….py), data sets (ours, parquet, Hugging Face), files."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the run.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, if one was begun there.")
    ] = False,
    levels: Annotated[str | None, typer.Option("--levels", metavar="1,2", help="Only these levels.")] = None,
    ids: Annotated[str | None, typer.Option("--ids", help="Only these: file names, their numbers, patterns.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many.")] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Tasks at work at once; one is timed at a time.")
    ] = None,
    stop_after: Annotated[
        float | None, typer.Option("--stop-after", metavar="SECONDS", min=1, help="Stop then; --resume goes on.")
    ] = None,
    device: DeviceArg = DeviceOption.AUTO,
    policy: Annotated[str, typer.Option("--policy", help="What chooses the next action.")] = "playbook",
    precision: PrecisionArg = Precision.TF32,
    turns: Annotated[int, typer.Option("--turns", min=1, help="Most turns of the agent on a task.")] = 60,
    max_tokens: TokensArg = None,
    max_cost: CostArg = None,
    max_minutes: MinutesArg = None,
    max_gpu_minutes: GpuMinutesArg = None,
    seed_with: Annotated[
        SeedOption | None, typer.Option("--seed-with", help="Whose best candidate is in the workspace at the start.")
    ] = None,
    model: ModelArg = None,
    base_url: BaseUrlArg = None,
    api_key_file: KeyFileArg = None,
    temperature: TemperatureArg = None,
    context_tokens: ContextArg = 131_072,
    reasoning: ReasoningArg = ReasoningOption.KEEP,
    tools: ToolsArg = ToolsOption.NATIVE,
    prices: PricesArg = None,
    protocol: ProtocolArg = ProtocolOption.OPENAI,
    timing_budget: Annotated[
        float, typer.Option("--timing-budget", metavar="SECONDS", help="Most time that one profile's rounds take.")
    ] = TIMING_BUDGET_S,
    timing_stop: Annotated[
        str, typer.Option("--timing-stop", help="decided: until it is plain which is faster; settled: to ±1 %.")
    ] = TIMING_STOP,
    sandbox: SandboxArg = SandboxOption.AUTO,
    allow_triton: TritonArg = False,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Play a policy on a suite of tasks; each result is on disk at once, metrics at the end."""
    if timing_stop not in ("settled", "decided"):
        raise UsageError(f"No rule {timing_stop!r} for --timing-stop", "Choose settled or decided")
    stop: TimingStop = "decided" if timing_stop == "decided" else "settled"
    chosen = resolve_device(device.value)
    run = OptimizeOptions(
        judge=JudgeOptions.parse(
            {
                "device": chosen,
                "precision": precision,
                "timing_budget_s": timing_budget,
                "timing_stop": stop,
                "sandbox": sandbox.value,
                "comparison": "triton" if allow_triton else None,
            }
        ),
        policy=policy_name(policy),
        limits=Limits.parse(limits(turns, max_tokens, max_cost, max_minutes, max_gpu_minutes)),
        seed_with=None if seed_with is None else seed_with.value,
        llm=language_model(
            policy, model, base_url, prices, max_cost, temperature=temperature, context_tokens=context_tokens,
            reasoning=reasoning.value, tools=tools.value, protocol=protocol.value,
        ),
    )  # fmt: skip
    options = BenchOptions(run=run, levels=_words(levels), ids=_words(ids), limit=limit)
    bench = _bench(suite or [], options, out, resume=resume, policy=policy)
    bench.key_file, bench.jobs, bench.stop_after_s = api_key_file, jobs, stop_after
    bench.told, bench.say = _tell, say
    return _play(bench, as_json=as_json)


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _bench(suite: list[str], options: BenchOptions, out: Path | None, *, resume: bool, policy: str) -> Bench:
    """A new run, or the one that was begun."""
    if resume and out is None:
        raise UsageError("--resume needs the run's folder", "Add --out DIR")
    if out is None:
        out = Path("runs") / f"bench-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    if resume and BenchDirectory(out).was_begun:
        # Without SUITE the run's own options hold, so none may be given.
        same = options if suite else None
        if not suite and options != _defaults(options):
            raise UsageError("Options of a run are fixed when it is begun", "Leave them out, or repeat SUITE with all")
        return go_on(out, suite=suite, options=same, say=say)
    if not suite:
        if resume:
            raise UsageError(f"{out} holds no benchmark run", "Begin one: cuda-agent bench SUITE --out DIR")
        raise UsageError("No SUITE given", "Name a folder of task files or a data set, or --resume --out DIR")
    command_line = ("cuda-agent", *sys.argv[1:])
    return begin(suite, read_suite(suite), options, out, policy=policy, command=command_line)


def _defaults(options: BenchOptions) -> BenchOptions:
    """As without any option, on the same device."""
    judge = JudgeOptions(device=options.run.judge.device, timing_budget_s=TIMING_BUDGET_S, timing_stop=TIMING_STOP)
    return BenchOptions(run=OptimizeOptions(judge=judge))


def _play(bench: Bench, *, as_json: bool) -> int:
    code = EXIT_OK
    try:
        metrics = bench.play()
    except KeyboardInterrupt:
        metrics, code = bench.measure(), EXIT_INTERRUPTED
    results = bench.directory.results()
    if as_json:
        emit(json.dumps(_document(bench, results, metrics)))
    else:
        if results:
            show(suite_view([RunRow(result.task.id, result) for result in results]), "")
        show(metrics_view(metrics))
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


def _document(bench: Bench, results: list[BenchResult], metrics: Metrics) -> dict[str, Any]:
    rows = []
    for result in results:
        row = RunRow(result.task.id, result)
        profile = row.profile
        rows.append(
            {
                "task": result.task.id,
                "state": row.state,
                "note": row.note,
                "reward": result.reward.value if result.reward is not None else None,
                "latency_us": profile.candidate.latency_us if profile is not None else None,
                "ratios": {name: ratio.value if (ratio := row.ratio(name)) else None for name in BASELINES},
                "roofline": result.task.roofline,
                "wall_s": result.wall_s,
            }
        )
    return {
        "schema_version": 1,
        "directory": str(bench.directory.path),
        "results": rows,
        "metrics": metrics.model_dump(mode="json"),
    }
