"""The domain of real trainings: the agent's tools, the judge, the pocket base model and the held-out tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_agent.agent.device import resolve_device
from cuda_agent.core.config import JudgeOptions
from cuda_agent.training.config import TrainingOptions
from cuda_agent.training.environment.opening import EnvironmentOptions, open_environment, open_judges
from cuda_agent.training.held_out import HeldOutOptions, evaluate_checkpoint, numbers
from cuda_agent.training.pocket.base import BaseOptions, make_base
from cuda_agent.training.stages.stage import OpenDomain

if TYPE_CHECKING:
    from cuda_agent.pool.pool import Pool


class KernelDomain:
    """The domain of CUDA kernels. `directory` is the training's; verdicts are stored there unless the configuration
    names another folder."""

    def __init__(
        self, options: TrainingOptions, directory: Path, progress: Callable[[str, str], None] = lambda phase, text: None
    ) -> None:
        """Raises UsageError for an unknown setting of `environment` or `base`."""
        self._options, self._directory = options, directory
        self._progress = progress
        self._in_cluster = False
        self._environment = EnvironmentOptions.parse(options.environment)
        self._base = BaseOptions.parse(options.base)
        self._held_out = HeldOutOptions.parse(options.held_out)

    @contextmanager
    def open(self, checkpoint: Path, *, single_turn: bool) -> Iterator[OpenDomain]:
        with open_environment(
            self._environment,
            checkpoint,
            device=self._options.device,
            folder=self._directory,
            single_turn=single_turn,
            progress=self._say,
            make_pool=self._cluster() if self._in_cluster else None,
        ) as opened:
            settings = opened.environment.settings
            yield OpenDomain(opened.environment, opened.train, settings.turn_tokens, settings.context_tokens)

    def base(self, directory: Path) -> Path:
        with open_judges(
            self._environment, device=self._options.device, folder=self._directory, progress=self._say
        ) as (judges, train, _):
            return make_base(
                self._base,
                judges,
                train,
                directory,
                play=self._environment.play,
                device=resolve_device(self._options.device),
                progress=self._say,
            )

    def evaluate(self, checkpoint: Path, directory: Path) -> dict[str, float]:
        score = evaluate_checkpoint(
            self._environment,
            checkpoint,
            directory,
            device=self._options.device,
            training=self._directory,
            held_out=self._held_out,
            single_turn=not self._options.agent_loop,
            progress=self._say,
        )
        return numbers(score)

    def in_cluster(self) -> KernelDomain:
        """Returns this domain for a process of a Ray cluster, whose actors judge candidates if there are any."""
        self._in_cluster = self._options.ray.judges > 0
        return self

    def _cluster(self) -> Callable[[JudgeOptions], Pool]:
        from cuda_agent.pool.cluster import ClusterPool

        ray = self._options.ray
        return lambda options: ClusterPool(options, judges=ray.judges, builders=ray.builders)

    def _say(self, text: str) -> None:
        self._progress("play", text)
