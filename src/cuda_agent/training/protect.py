"""Protective stops: a training that has gone wrong halts with its last good checkpoint."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from cuda_agent.core.errors import CudaAgentError
from cuda_agent.training.config import ProtectOptions

Line = dict[str, Any]


class TrainingHalted(CudaAgentError):
    """A protective stop. The last good checkpoint is kept."""

    exit_code = 12


def reason_to_stop(lines: Sequence[Line], options: ProtectOptions) -> str | None:
    """Returns why the training must stop after its last step, or None. `lines` are a stage's steps in `MetricsLog`."""
    looks = (_ratio, _entropy, _explained_variance, _reward) if lines else ()
    reasons = (look(lines, options) for look in looks)
    return next((reason for reason in reasons if reason is not None), None)


def _ratio(lines: Sequence[Line], options: ProtectOptions) -> str | None:
    if options.ratio is None:
        return None
    # `update_ratio_min` is not checked: an update that makes a rare token rarer is clipped at 0.8 and harmless.
    for name in ("ratio_max", "update_ratio_max", "ratio_min"):
        value = lines[-1].get(name)
        if value is None:
            continue
        if name.endswith("max") and value > options.ratio:
            return f"importance ratio exploded: {name} {value:.3g} > {options.ratio:.3g} (protect.ratio)"
        if name.endswith("min") and value < 1 / options.ratio:
            return f"importance ratio exploded: {name} {value:.3g} < {1 / options.ratio:.3g} (1 / protect.ratio)"
    return None


def _entropy(lines: Sequence[Line], options: ProtectOptions) -> str | None:
    known = [line["entropy"] for line in lines if "entropy" in line]
    if options.entropy_factor is None or not known:
        return None
    limit = max(options.entropy_factor * known[0], options.entropy_floor)
    if not _in_a_row(known, lambda value: value > limit, options.patience):
        return None
    return (
        f"entropy exploded: {known[-1]:.3g} nats, above {limit:.3g} for {options.patience} steps "
        f"(first step {known[0]:.3g}; protect.entropy_factor)"
    )


def _explained_variance(lines: Sequence[Line], options: ProtectOptions) -> str | None:
    limit = options.explained_variance
    known = [line["explained_variance"] for line in lines if "explained_variance" in line]
    if limit is None or not _in_a_row(known, lambda value: value < limit, options.patience):
        return None
    return (
        f"the critic is worse than a constant: explained variance {known[-1]:.3g}, below {limit:g} for "
        f"{options.patience} steps (protect.explained_variance)"
    )


def _reward(lines: Sequence[Line], options: ProtectOptions) -> str | None:
    known = [line["reward"] for line in lines if "reward" in line]
    window = options.window
    if options.reward_drop is None or len(known) < 2 * window:
        return None
    means = [statistics.fmean(known[end - window : end]) for end in range(window, len(known) + 1)]
    best, now = max(means), means[-1]
    if best - now <= options.reward_drop:
        return None
    return f"reward collapsed: mean of {window} steps {now:.3g}, was {best:.3g} (protect.reward_drop)"


def _in_a_row(values: Sequence[float], holds: Callable[[float], bool], count: int) -> bool:
    return len(values) >= count and all(map(holds, values[-count:]))
