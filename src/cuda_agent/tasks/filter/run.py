"""Filters a dataset's candidates. It continues where its files end, and writes every result as soon as it is known."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.core.errors import UsageError
from cuda_agent.core.files import locked
from cuda_agent.core.lines import read_lines
from cuda_agent.core.stack import read_stack
from cuda_agent.tasks.filter.measurements import FILTER_LOCK, Journal, stack_for
from cuda_agent.tasks.filter.options import FilterOptions
from cuda_agent.tasks.filter.passes import Passes, VoidTiming
from cuda_agent.tasks.filter.records import Checked
from cuda_agent.tasks.records import CANDIDATES_FILE, DatasetTask, Measurement

#: The tasks that go through both passes together: so many that changing the pass costs little, and so few that little
#: is left untimed when the time ends.
_BATCH = 300
_TELL_S = 5.0


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 1) of `count`, for several machines."""

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parses a shard such as `2/4`. Raises UsageError."""
        first, slash, last = text.partition("/")
        if not (slash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
            raise UsageError(f"No shard {text!r}", "Give I/N with 1 <= I <= N, as in 2/4")
        return cls(int(first), int(last))

    def holds(self, task: DatasetTask) -> bool:
        return task.number % self.count == self.index - 1


@dataclass(frozen=True)
class Filtered:
    """The result of one run of the filter. `asked` counts the decided tasks. `left` has the tasks whose timing was
    disturbed, with the reason, and `waiting` counts the tasks that the time wasn't enough for; the next run repeats
    both. `seconds` are those of each pass, and `steps_s` the average of each step of a decided task."""

    path: Path
    known: int
    asked: int
    passed: int
    findings: dict[str, int]
    left: dict[str, str]
    waiting: int
    seconds: dict[str, float]
    steps_s: dict[str, float]

    @property
    def a_minute(self) -> float | None:
        spent = sum(self.seconds.values())
        return 60 * self.asked / spent if spent and self.asked else None


def read_candidates(folder: Path) -> list[DatasetTask]:
    """Returns the candidates in order of their numbers. Raises UsageError where the folder has none, StoreError."""
    path = folder / CANDIDATES_FILE
    if not path.exists():
        raise UsageError(f"{folder} has no candidates", f"Run: cuda-agent tasks compose {folder}")
    return read_lines(path, DatasetTask)


def filter_folder(
    folder: Path,
    options: FilterOptions,
    say: Callable[[str], None],
    *,
    limit: int | None = None,
    shard: Shard | None = None,
    below: int | None = None,
    stop_after_s: float | None = None,
) -> Filtered:
    """Checks and times the candidates that are unknown on this stack: at most `limit` of them, and only those with
    numbers below `below`. No task begins after `stop_after_s` seconds. Raises UsageError, StoreError, DeviceError,
    SandboxError, WorkerError."""
    until = None if stop_after_s is None else time.monotonic() + stop_after_s
    mine = [task for task in read_candidates(folder) if shard is None or shard.holds(task)]
    mine = [task for task in mine if below is None or task.number < below]
    with locked(folder / FILTER_LOCK):
        journal = Journal(folder, stack_for(read_stack(), options.device))
        unknown = {task.task.key: task for task in mine if task.task.key not in journal.measured}
        waiting = list(unknown.values())[:limit]
        run = _Run(journal, options, say, len(waiting))
        if waiting:
            with Passes(options, say, until) as passes:
                # Checked tasks come first: an earlier run whose time was over has left them.
                waiting.sort(key=lambda task: task.task.key not in journal.checked)
                for start in range(0, len(waiting), _BATCH):
                    run.batch(passes, waiting[start : start + _BATCH])
                run.rest(passes)
        found = [journal.measured[task.task.key] for task in waiting if task.task.key in journal.measured]
    return Filtered(
        path=journal.path,
        known=len(mine) - len(unknown),
        asked=len(found) + len(run.left),
        passed=sum(one.passed for one in found),
        findings=dict(Counter(one.finding.rule.value for one in found if one.finding is not None)),
        left=run.left,
        waiting=len(waiting) - len(found) - len(run.left),
        seconds=run.seconds,
        steps_s=_steps(found),
    )


def _steps(found: Sequence[Measurement]) -> dict[str, float]:
    totals: Counter[str] = Counter()
    for one in found:
        totals.update(one.seconds)
    return {step: round(total / len(found), 3) for step, total in totals.items()}


class _Run:
    """The state of one run, and both passes over a batch."""

    def __init__(self, journal: Journal, options: FilterOptions, say: Callable[[str], None], total: int) -> None:
        self._journal, self._options, self._say, self._total = journal, options, say, total
        self._done = self._checks = 0
        self._begun, self._told = time.monotonic(), 0.0
        self.left: dict[str, str] = {}
        self._unfit: list[DatasetTask] = []
        self.seconds = {"check": 0.0, "time": 0.0}

    def batch(self, passes: Passes, tasks: Sequence[DatasetTask]) -> None:
        """Checks and times the tasks, for as many as there is time for."""
        unchecked = [task for task in tasks if task.task.key not in self._journal.checked]
        if unchecked and not passes.over:
            self._say(f"checking {len(unchecked)} tasks, {self._options.worker_count()} at a time")
            self._take("check", passes.check_all(unchecked))
        self._time(passes, tasks)

    def rest(self, passes: Passes) -> None:
        """Checks tasks alone that ran short of time or memory beside others, so that no result depends on other tasks.
        They come last, because most of the machine idles meanwhile."""
        tasks, self._unfit = self._unfit, []
        if tasks and not passes.over:
            self._say(f"checking {len(tasks)} tasks again, one at a time: they ran short of time or memory")
            self._take("check", passes.check_all(tasks, alone=True))
            self._time(passes, tasks)

    def _time(self, passes: Passes, tasks: Sequence[DatasetTask]) -> None:
        """Times the tasks that passed the checks and aren't timed."""
        known, measured = self._journal.checked, self._journal.measured
        keyed = {task.task.key: task for task in tasks}
        ready = [(task, known[key]) for key, task in keyed.items() if key in known and key not in measured]
        if ready and not passes.over:
            self._say(f"timing {len(ready)} tasks")
            self._take("time", passes.time_all(ready))

    def _take(self, step: str, results: Iterable[Checked | Measurement | DatasetTask | VoidTiming]) -> None:
        """Takes results as they come, and counts the seconds of the pass."""
        begun = time.monotonic()
        for result in results:
            if isinstance(result, DatasetTask):
                self._unfit.append(result)
            elif isinstance(result, VoidTiming):
                self.left[result.task.task.name] = result.reason
            elif isinstance(result, Checked):
                self._journal.add_checked(result)
                self._checks += 1
            else:
                self._journal.add(result)
                self._done += 1
            self._tell()
        self.seconds[step] += time.monotonic() - begun

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told >= _TELL_S:
            self._told = now
            spent = now - self._begun
            rates = f"{60 * self._checks / spent:.0f} and {60 * self._done / spent:.0f} a minute"
            self._say(f"{self._checks} checked, {self._done} of {self._total} decided: {rates}")
