"""cuda-agent train"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from cuda_agent.cli.support.output import CommandAnswer, answers, say
from cuda_agent.cli.support.settings import SetArg, TrainingArg
from cuda_agent.core.errors import UsageError
from cuda_agent.training.config import TrainingOptions, preset, read_options
from cuda_agent.training.stages.records import STAGES, TrainingManifest

#: What to run: a stage, all stages of the configuration in order, or a look at the configuration only.
Stage = Literal["all", "base", "warmup", "sample", "rft", "value", "ppo", "check"]


@answers
def train(
    stage: Annotated[Stage, typer.Argument(help="Stage to run; check only composes the configuration.")],
    config: TrainingArg,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the training; one that is there is continued.")
    ] = None,
    settings: SetArg = None,
) -> CommandAnswer:
    """Train a policy: warm-up, sampling, rejection fine-tuning, value pretraining, PPO. A stopped one is continued."""
    options = read_options(config, settings or ())
    if stage == "check":
        return _check(options)
    directory = out or Path("runs") / f"train-{options.name}"
    chosen = STAGES if stage == "all" else (stage,)
    if stage not in ("all", "base") and getattr(options, stage) is None:
        raise UsageError(f"{config} leaves the stage {stage} out", f"Give its options ({preset('pocket')} has all)")
    from cuda_agent.training.domain import KernelDomain
    from cuda_agent.training.stages.run import Training

    begun = time.monotonic()

    def progress(phase: str, text: str) -> None:
        say(f"{time.monotonic() - begun:7.1f} s  {phase:<7} {text}")

    manifest = Training(directory, options, KernelDomain(options, directory, progress), progress).run(chosen)
    document = {"folder": str(directory), "stages": [one.model_dump() for one in manifest.stages]}
    return CommandAnswer(document, said=_lines(manifest, directory))


def _check(options: TrainingOptions) -> CommandAnswer:
    """Raises UsageError where verl or one of our own parts refuses a setting."""
    from cuda_agent.training.domain import KernelDomain
    from cuda_agent.training.stages.run import check

    KernelDomain(options, Path())
    memory = check(options)
    wanted = [name for name in STAGES if name == "base" or getattr(options, name) is not None]
    said = f"{options.name}: {', '.join(wanted)} by the launcher {options.launcher}; verl accepts it"
    return CommandAnswer(options, said=[said, *map(str, memory)])


def _lines(manifest: TrainingManifest, directory: Path) -> Iterator[str]:
    for one in manifest.stages:
        made = one.policy or one.critic or ""
        numbers = ", ".join(f"{name} {value:.3g}" for name, value in one.numbers.items() if name.startswith("held_out"))
        yield f"{one.stage:<7} {one.steps:>4} steps {one.wall_s:>7.0f} s  {made}  {numbers}".rstrip()
    policies = [one.policy for one in manifest.stages if one.policy is not None]
    if policies:
        yield f"The policy: cuda-agent optimize TASK --policy {directory / policies[-1]}"
