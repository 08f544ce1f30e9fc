"""The domain of real trainings: the agent's tools, the judge, the pocket base model and the held-out tasks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from cuda_agent.agent.device import resolve_device
from cuda_agent.pool.cluster import ClusterPool
from cuda_agent.training.config import EpisodeLimits, TrainingOptions
from cuda_agent.training.environment.opening import EnvironmentOptions, Opening
from cuda_agent.training.held_out import HeldOutOptions, evaluate_checkpoint, numbers
from cuda_agent.training.pocket.base import BaseOptions, make_base
from cuda_agent.training.stages.stage import OpenDomain


class KernelDomain:
    """The domain of CUDA kernels. `directory` is the training's; verdicts are stored there unless the configuration
    names another folder."""

    def __init__(
        self, options: TrainingOptions, directory: Path, progress: Callable[[str, str], None] = lambda phase, text: None
    ) -> None:
        """Raises UsageError for an unknown setting of `environment` or `base`."""
        self._options = options
        environment = EnvironmentOptions.parse(options.environment)
        self._opening = Opening(environment, options.device, directory, lambda text: progress("play", text))
        self._base = BaseOptions.parse(options.base)
        self._held_out = HeldOutOptions.parse(options.held_out)

    @contextmanager
    def open(self, checkpoint: Path, limits: EpisodeLimits) -> Iterator[OpenDomain]:
        with self._opening.environment(checkpoint, limits) as opened:
            settings = opened.environment.settings
            yield OpenDomain(opened.environment, opened.train, settings.turn_tokens, settings.context_tokens)

    def base(self, directory: Path) -> Path:
        opening = self._opening
        with opening.judges() as (judges, train, _):
            return make_base(
                self._base,
                judges,
                train,
                directory,
                play=opening.options.play,
                device=resolve_device(opening.device),
                progress=opening.progress,
            )

    def evaluate(self, checkpoint: Path, directory: Path) -> dict[str, float]:
        how = self._held_out
        if not self._options.agent_loop:
            how = how.model_copy(update={"limits": how.limits.single()})
        score = evaluate_checkpoint(self._opening, checkpoint, directory, held_out=how)
        return numbers(score)

    def in_cluster(self) -> Self:
        """Returns this domain for a process of a Ray cluster, whose actors judge candidates if there are any."""
        ray = self._options.ray
        if ray.judges > 0:
            pool = partial(ClusterPool, judges=ray.judges, builders=ray.builders)
            self._opening = replace(self._opening, make_pool=pool)
        return self
