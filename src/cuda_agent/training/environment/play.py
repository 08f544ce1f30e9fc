"""Many episodes in lockstep: all generate, then the tools of all run. Generation and timing never happen at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pydantic import Field

from cuda_agent.agent.trained.dialogue import Dialogue, DialogueSettings
from cuda_agent.core.config import Configuration
from cuda_agent.core.enums import RewardBaseline
from cuda_agent.core.errors import DeviceError, TaskError, WorkerError
from cuda_agent.core.records import Task
from cuda_agent.training.environment.judges import Judges
from cuda_agent.training.environment.rollout import Rollout
from cuda_agent.training.episodes import Episode, Generate, Generated

#: the episodes that are being played -> what the policy adds to each.
Answer = Callable[[Sequence[Rollout]], list[Generated]]


class Limits(Configuration):
    """How episodes are played and paid."""

    baseline: RewardBaseline = RewardBaseline.MATCHED
    #: workspaces whose tools run at a time; timing itself is one at a time on a device.
    threads: int = Field(default=0, ge=0, description="0: as many as there are cores")
    #: episodes that are open at once.
    at_once: int = Field(default=128, ge=1)


class ToolEnvironment:
    """`episodes.Environment` over the agent's tools and the judge."""

    def __init__(
        self,
        judges: Judges,
        dialogue: Dialogue,
        settings: DialogueSettings,
        limits: Limits | None = None,
        *,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.judges, self.dialogue, self.settings = judges, dialogue, settings
        self.limits = limits or Limits()
        self._progress = progress
        self._threads = self.limits.threads or 2 * len(os.sched_getaffinity(0))

    def rollout(self, task: Task) -> Rollout:
        """One episode, to be opened, played and closed by whoever asks: what another engine's agent loop drives."""
        return Rollout(task, self.dialogue, self.settings, self.judges, baseline=self.limits.baseline)

    def play(self, tasks: Sequence[Task], generate: Generate, *, seed: int, policy_version: int = 0) -> list[Episode]:
        """As `episodes.Environment.play`. A failure of the judge alone leaves the reward of its episode unknown."""

        def answer(playing: Sequence[Rollout]) -> list[Generated]:
            return generate([rollout.context for rollout in playing])

        return self.play_by(tasks, answer, seed=seed, policy_version=policy_version)

    def play_by(self, tasks: Sequence[Task], answer: Answer, *, seed: int, policy_version: int = 0) -> list[Episode]:
        """The same for players that know more than the context, such as the author of transcripts."""
        found: list[Episode] = []
        for start in range(0, len(tasks), self.limits.at_once):
            part = tasks[start : start + self.limits.at_once]
            found += self._part(part, answer, seed=seed + start, policy_version=policy_version)
        asked, known = sum(e.evaluations for e in found), sum(e.memoised for e in found)
        if asked:
            self._progress(f"{len(found)} episodes, {asked} verdicts, {known / asked:.0%} of them known")
        return found

    def _part(self, tasks: Sequence[Task], answer: Answer, *, seed: int, policy_version: int) -> list[Episode]:
        rollouts = [self.rollout(task) for task in tasks]
        try:
            with self.judges.workers(self._threads) as threads:
                list(threads.map(Rollout.open, rollouts))
                while playing := [rollout for rollout in rollouts if not rollout.ended]:
                    begun = time.monotonic()
                    answers = answer(playing)
                    each = (time.monotonic() - begun) / len(playing)
                    for rollout, own in zip(playing, answers, strict=True):
                        rollout.take(own)
                        rollout.generate_s += each
                    list(threads.map(_act, playing))
            return [
                rollout.episode(policy_version=policy_version, seed=seed + number)
                for number, rollout in enumerate(rollouts)
            ]
        finally:
            with ThreadPoolExecutor(self._threads) as threads:
                list(threads.map(Rollout.close, rollouts))


def _act(rollout: Rollout) -> None:
    """A task that can't be judged, or a judge's worker that died, costs one episode; a full disk ends the stage."""
    try:
        rollout.act()
        if rollout.ended:
            rollout.settle()
    except (TaskError, WorkerError, DeviceError):
        rollout.fail()
