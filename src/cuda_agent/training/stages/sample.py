"""Trajectory sampling: the warmed-up policy plays every task several times, and the episodes are stored as token
ids."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cuda_agent.core.lines import append
from cuda_agent.core.records import Task
from cuda_agent.training.config import SampleOptions
from cuda_agent.training.engine.sampler import PolicyCopy
from cuda_agent.training.episodes import EPISODES_FILE, read_episodes
from cuda_agent.training.metrics import MetricsLog, of_episodes
from cuda_agent.training.stages.stage import StageResult, TrainingStage


def sample(stage: TrainingStage, options: SampleOptions) -> StageResult:
    """Samples episodes. A batch is on disk before the next; a resumed stage plays the missing episodes."""
    path = stage.directory / EPISODES_FILE
    episodes = read_episodes(path)
    checkpoint = Path(stage.policy)
    with stage.domain.open(checkpoint, stage.limits(options.limits)) as opened:
        missing = _missing(opened.tasks, [one.task_key for one in episodes], options.episodes_per_task)
        policy = PolicyCopy(checkpoint, stage.options.model, device=stage.device) if missing else None
        for start in range(0, len(missing), options.batch):
            assert policy is not None
            seed = stage.seed(len(episodes))
            generate = policy.generate(turn_tokens=opened.turn_tokens, context_tokens=opened.context_tokens, seed=seed)
            played = opened.environment.play(missing[start : start + options.batch], generate, seed=seed)
            append(path, played)
            episodes += played
            stage.progress(stage.name, f"{len(episodes)} episodes")
    numbers = of_episodes(episodes, stage.options.reward)
    with MetricsLog(stage.run, stage.name, from_step=1) as metrics:
        metrics.add(1, numbers)
    return StageResult(steps=1, numbers=numbers)


def _missing(tasks: Sequence[Task], played: list[str], count: int) -> list[Task]:
    """Returns the missing episodes' tasks, round by round, so an interrupted stage has played all about equally
    often."""
    seen = Counter(played)
    return [task for number in range(count) for task in tasks if seen[task.key] <= number]
