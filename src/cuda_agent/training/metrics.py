"""Logs every step: one JSON object with flat numeric keys per line, and TensorBoard if it is installed."""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from cuda_agent.core.enums import Milestone
from cuda_agent.core.files import append_lines, write_durably
from cuda_agent.core.lines import read_objects
from cuda_agent.training.episodes import Episode, RewardKind, rewarded

#: file of all stages of a run, in order.
METRICS_FILE = "metrics.jsonl"


def of_episodes(episodes: Sequence[Episode], kind: RewardKind = "milestone") -> dict[str, float]:
    """Returns metrics of episodes. Shares are of all episodes, means of those that the judge judged. Times in
    seconds."""
    judged = [one for one in episodes if one.milestone is not None]
    found = {
        "episodes": float(len(episodes)),
        "judge_failed": _share(episodes, lambda one: one.reward is None),
        "reward": _mean(rewarded(episodes, kind)[1]),
        "pass_rate": _share(episodes, lambda one: one.milestone not in (None, Milestone.FAILED)),
        "faster_rate": _share(episodes, lambda one: one.milestone is Milestone.FASTER_THAN_BOTH),
        "truncated_rate": _share(episodes, lambda one: one.truncated),
        "violation_rate": _share(episodes, lambda one: bool(one.violations)),
        "turns": _mean([one.turns for one in episodes]),
        "calls": _mean([one.calls for one in episodes]),
        "own_tokens": _mean([one.own_tokens for one in episodes]),
        "tokens": _mean([len(one.input_ids) for one in episodes]),
        "invalid_call_rate": _ratio(episodes, "invalid_calls", "calls"),
        "repeated_call_rate": _ratio(episodes, "repeated_calls", "calls"),
        "tool_error_rate": _ratio(episodes, "tool_errors", "calls"),
        "evaluations": float(sum(one.evaluations for one in episodes)),
        "memo_hit_rate": _ratio(episodes, "memoised", "evaluations"),
        "judge_s": sum(one.judge_s for one in episodes),
        "generate_s": sum(one.generate_s for one in episodes),
    }
    for milestone in Milestone:
        count = sum(one.milestone is milestone for one in judged)
        found[f"share_{milestone.value}"] = count / len(judged) if judged else math.nan
    ratios = [one.ratio for one in episodes if one.ratio is not None and one.ratio > 0]
    found["geomean_ratio"] = math.exp(_mean([math.log(ratio) for ratio in ratios])) if ratios else math.nan
    return found


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _share(episodes: Sequence[Episode], holds: Callable[[Episode], bool]) -> float:
    return sum(map(holds, episodes)) / len(episodes) if episodes else math.nan


def _ratio(episodes: Sequence[Episode], part: str, whole: str) -> float:
    total = sum(getattr(one, whole) for one in episodes)
    return sum(getattr(one, part) for one in episodes) / total if total else 0.0


class MetricsLog:
    """The metrics file of a run, for one stage. Lines of the resumed step and later ones are dropped."""

    def __init__(self, directory: Path, stage: str, *, from_step: int) -> None:
        self._path = directory / METRICS_FILE
        self._stage = stage
        kept = [line for line in read_metrics(directory) if line["stage"] != stage or line["step"] < from_step]
        if self._path.exists():
            write_durably(self._path, "".join(json.dumps(line) + "\n" for line in kept))
        self.lines: list[dict[str, Any]] = [line for line in kept if line["stage"] == stage]
        self._board = _board(directory / "tensorboard" / stage, from_step)

    def add(self, step: int, values: dict[str, float]) -> None:
        """Appends a step durably. Values that aren't finite are left out. Raises StoreError."""
        numbers = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        line = {"stage": self._stage, "step": step, **numbers}
        append_lines(self._path, [json.dumps(line)])
        self.lines.append(line)
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(f"{self._stage}/{name}", value, step)
            self._board.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.close()


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """Returns the lines of a run in order."""
    return read_objects(directory / METRICS_FILE)


def _board(directory: Path, from_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(directory), purge_step=from_step)
