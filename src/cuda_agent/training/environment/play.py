"""Plays many episodes in lockstep: the policy generates for all, then the tools of all run. So generation and timing
never overlap."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pydantic import Field

from cuda_agent.agent.trained.dialogue import Dialogue, DialogueSettings
from cuda_agent.agent.trained.sampler import Sampled
from cuda_agent.core.config import Configuration
from cuda_agent.core.enums import RewardBaseline
from cuda_agent.core.records import Task
from cuda_agent.training.environment.judges import Judges
from cuda_agent.training.environment.rollout import Rollout
from cuda_agent.training.episodes import Episode, Generate, act

#: the episodes in play -> what the policy adds to each.
Answer = Callable[[Sequence[Rollout]], list[Sampled]]


class PlayOptions(Configuration):
    """How episodes are played and rewarded."""

    baseline: RewardBaseline = RewardBaseline.MATCHED
    #: number of workspaces whose tools run at a time. A device times one candidate at a time.
    threads: int = Field(default=0, ge=0, description="0: as many as there are cores")
    #: number of open episodes.
    at_once: int = Field(default=128, ge=1)


class ToolEnvironment:
    """`episodes.Environment` over the agent's tools and the judge."""

    def __init__(
        self,
        judges: Judges,
        dialogue: Dialogue,
        settings: DialogueSettings,
        limits: PlayOptions | None = None,
        *,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.judges, self.dialogue, self.settings = judges, dialogue, settings
        self.limits = limits or PlayOptions()
        self._progress = progress
        self._threads = self.limits.threads or 2 * len(os.sched_getaffinity(0))

    def rollout(self, task: Task) -> Rollout:
        """Returns one episode for the caller to open, play and close, such as another engine's agent loop."""
        return Rollout(task, self.dialogue, self.settings, self.judges, baseline=self.limits.baseline)

    def play(self, tasks: Sequence[Task], generate: Generate, *, seed: int, policy_version: int = 0) -> list[Episode]:
        """Plays as `episodes.Environment.play`. If the judge fails, the reward of its episode is unknown."""

        def answer(playing: Sequence[Rollout]) -> list[Sampled]:
            return generate([rollout.context for rollout in playing])

        return self.play_by(tasks, answer, seed=seed, policy_version=policy_version)

    def play_by(self, tasks: Sequence[Task], answer: Answer, *, seed: int, policy_version: int = 0) -> list[Episode]:
        """Plays with a player that sees whole episodes, such as the author of transcripts."""
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
                    list(threads.map(act, playing))
            return [
                rollout.episode(policy_version=policy_version, seed=seed + number)
                for number, rollout in enumerate(rollouts)
            ]
        finally:
            with ThreadPoolExecutor(self._threads) as threads:
                list(threads.map(Rollout.close, rollouts))
