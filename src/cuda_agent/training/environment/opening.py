"""Opens an environment from its configuration and a checkpoint's dialogue. Every stage does it before it plays."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from cuda_agent.agent.device import resolve_device
from cuda_agent.agent.trained.checkpoint import load_dialogue, load_settings
from cuda_agent.agent.trained.dialogue import DialogueSettings, PolicyKind
from cuda_agent.core.config import Configuration, JudgeOptions
from cuda_agent.core.errors import UsageError
from cuda_agent.core.lines import read_lines
from cuda_agent.core.records import Task
from cuda_agent.pool.pool import Pool
from cuda_agent.tasks.dataset.importing import exported, read_exported
from cuda_agent.tasks.records import DatasetTask
from cuda_agent.training.config import EpisodeLimits
from cuda_agent.training.environment.judges import Judges, usable
from cuda_agent.training.environment.play import PlayOptions, ToolEnvironment

HELD_OUT = "held_out"
#: splits that are never trained on -> whether checkpoints are evaluated on them.
_KEPT = {HELD_OUT: True, "validation": True, "test": False}


class EnvironmentOptions(Configuration):
    """What is played. `tasks` is the folder of an exported data set or a file of its tasks (JSON lines, also `.gz`).
    Checkpoints are evaluated on the splits `held_out` and `validation`, the split `test` is not used, and all others
    are trained on."""

    tasks: str
    #: folder of the known verdicts. None: in the training's folder. Trainings on the same stack may share it.
    memo: str | None = None
    #: digest of the verdicts' stack (`stack` in the memo's lines). None: this machine's. With it, a complete table can
    #: be played on any machine, even without a GPU (`judge: {device: cuda}`).
    stack: str | None = None
    #: a candidate that isn't known is judged, or with `fail` treated as one that doesn't compile. `fail` is for a busy
    #: device when all choices are known.
    unknown: Literal["judge", "fail"] = "judge"
    #: settings of the judge besides its device.
    judge: dict[str, Any] = Field(default_factory=dict)
    play: PlayOptions = PlayOptions()
    #: UUIDs or numbers of the GPUs that judge. Default: the first.
    gpus: tuple[str, ...] = ()
    #: number of tasks whose compiled baselines are kept ready.
    sessions: int = Field(default=6, ge=1)
    #: most tasks of each split, the first ones. None: all.
    most_tasks: int | None = Field(default=None, ge=1)


@dataclass(frozen=True)
class Opened:
    """An open environment with its tasks by split."""

    environment: ToolEnvironment
    train: tuple[Task, ...]
    held_out: tuple[Task, ...]


def read_tasks(options: EnvironmentOptions) -> tuple[list[Task], list[Task]]:
    """Returns the tasks (to train on, held out). Raises UsageError if there are none to train on, and StoreError."""
    path = Path(options.tasks)
    if exported(path):
        lines = read_exported(path)[0]
    elif path.is_file():
        lines = read_lines(path, DatasetTask)
    else:
        raise UsageError(
            f"No tasks: {path}",
            "Give environment.tasks an exported data set or a file: data/dataset, data/pocket.jsonl",
        )
    every = [line.task for line in lines]
    train = [task for task in every if task.split not in _KEPT][: options.most_tasks]
    held = [task for task in every if _KEPT.get(task.split or "", False)][: options.most_tasks]
    if not train:
        raise UsageError(f"{path} holds no task to train on", f"Give them another split than {', '.join(_KEPT)}")
    return train, held


@dataclass(frozen=True)
class Opening:
    """How the environment of a training is opened. `folder` is the training's. `make_pool` makes the judges' pool
    elsewhere than on this machine."""

    options: EnvironmentOptions
    device: str
    folder: Path
    progress: Callable[[str], None] = lambda text: None
    make_pool: Callable[[JudgeOptions], Pool] | None = None

    @contextmanager
    def judges(self, *, kind: PolicyKind = "pocket") -> Iterator[tuple[Judges, tuple[Task, ...], tuple[Task, ...]]]:
        """Yields the judges and the tasks by split. Tasks that this kind of dialogue can't say are left out and
        reported."""
        options = self.options
        judge = JudgeOptions.parse({"device": resolve_device(self.device), **options.judge})
        train, held = read_tasks(options)
        memo = Path(options.memo) if options.memo is not None else self.folder / "memo"
        with Judges(
            memo, judge, gpus=options.gpus, sessions=options.sessions, stack=options.stack, make_pool=self.make_pool,
            table_only=options.unknown == "fail",
        ) as judges:  # fmt: skip
            known, reasons = usable(judges, [*train, *held], kind) if kind != "tools" else ([*train, *held], {})
            if judges.memo.foreign:
                self.progress(
                    f"{judges.memo.foreign} verdicts in {memo} are of another stack or other settings: not used"
                )
            for name, reason in reasons.items():
                self.progress(f"{name} is left out: {reason}")
            keys = {task.key for task in known}
            mine, theirs = (tuple(task for task in split if task.key in keys) for split in (train, held))
            yield judges, mine, theirs

    @contextmanager
    def environment(self, checkpoint: Path, limits: EpisodeLimits) -> Iterator[Opened]:
        """Opens an environment. `checkpoint` may be any of this training; its tokenizer and dialogue are used. Raises
        UsageError, StoreError and DeviceError."""
        settings = limited(load_settings(checkpoint), limits)
        dialogue = load_dialogue(checkpoint, settings)
        with self.judges(kind=settings.kind) as (judges, train, held):
            environment = ToolEnvironment(judges, dialogue, settings, self.options.play, progress=self.progress)
            yield Opened(environment, train, held)


def limited(settings: DialogueSettings, limits: EpisodeLimits) -> DialogueSettings:
    """Returns the settings within a stage's limits. One turn has room for as many calls as fit. Raises UsageError for
    what can't be played."""
    given = limits.model_dump(exclude_none=True)
    kind = given.get("kind", settings.kind)
    if kind != settings.kind and settings.kind == "pocket":
        raise UsageError(f"A pocket policy can't play {kind}", "Leave out limits.kind")
    if kind == "tools" and given.get("turns", settings.turns) == 1:
        raise UsageError(
            "An answer of one turn can't use the agent's tools", "Set the stage's limits.kind to short or files"
        )
    if limits.turns == 1 and limits.turn_tokens is None:
        context = limits.context_tokens or settings.context_tokens
        given["turn_tokens"] = min(settings.turn_tokens * settings.turns, context)
    return settings.model_copy(update=given)
