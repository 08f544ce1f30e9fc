"""Rejection fine-tuning of the actor: maximises the log-likelihood of its sampled tokens in the episodes that the
filters keep."""

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from pydantic import Field

from cuda_agent.core.errors import CudaAgentError, UsageError
from cuda_agent.core.record import StoredRecord
from cuda_agent.training.config import Fault, RftOptions
from cuda_agent.training.engine.batch import mini_batches
from cuda_agent.training.engine.worker import open_actor
from cuda_agent.training.episodes import EPISODES_FILE, Episode, read_episodes
from cuda_agent.training.metrics import MetricsLog
from cuda_agent.training.ray.shards import workers
from cuda_agent.training.stages.stage import StageResult, TrainingStage

#: reasons in the order of their checks. An episode counts under the first that holds.
REASONS = ("judge_failed", "reward", "violation", *get_args(Fault), "truncated")


class NothingToLearn(CudaAgentError):
    """The filters left no episode."""

    exit_code = 13


class EpisodeFunnel(StoredRecord):
    """How many episodes were played and kept, and how many each reason dropped."""

    file_name = "funnel.json"
    played: int
    kept: int
    dropped: dict[str, int] = Field(default_factory=dict)


def reason_to_drop(episode: Episode, options: RftOptions) -> str | None:
    """Returns why an episode is dropped, or None (paper, "Training", step 3)."""
    if episode.reward is None:
        return "judge_failed"
    checks: dict[str, bool] = {
        "reward": episode.reward <= options.reward_above,
        "violation": bool(episode.violations),
        **{fault: _too_many(episode, fault, rate) for fault, rate in options.fault_rates},
        "truncated": episode.truncated and not options.keep_truncated,
    }
    return next((reason for reason in REASONS if checks.get(reason)), None)


def _too_many(episode: Episode, fault: str, rate: float) -> bool:
    allowed = max(1.0, rate * max(episode.calls, episode.turns)) if rate > 0 else 0.0
    return sum(count for kind, count in episode.faults.items() if kind == fault) > allowed


def keep(episodes: Sequence[Episode], options: RftOptions) -> tuple[list[Episode], EpisodeFunnel]:
    """Returns the episodes to learn from, in their order, and the counts."""
    reasons = [reason_to_drop(episode, options) for episode in episodes]
    kept = [episode for episode, reason in zip(episodes, reasons, strict=True) if reason is None]
    counts = Counter(reasons)
    dropped = {reason: counts[reason] for reason in REASONS if counts[reason]}
    return kept, EpisodeFunnel(played=len(episodes), kept=len(kept), dropped=dropped)


def fine_tune(stage: TrainingStage, options: RftOptions) -> StageResult:
    """Fine-tunes the actor. The stage is short, so a kill restarts it. Raises NothingToLearn, with the counts."""
    episodes = sampled(stage)
    kept, funnel = keep(episodes, options)
    funnel.write(stage.directory)
    stage.progress(stage.name, say_funnel(funnel))
    if not kept:
        raise NothingToLearn(
            f"The filters leave no episode: {say_funnel(funnel)}",
            "Sample more (sample.episodes_per_task), loosen the filters (rft), or leave the stage out (rft: null)",
        )
    step = 0
    with workers(stage) as make, MetricsLog(stage.run, stage.name, from_step=1) as metrics:
        actor = open_actor(stage.options.model, stage.policy, options, seed=stage.seed(0), make=make)
        for epoch in range(options.epochs):
            for chosen in mini_batches(kept, options.batch, stage.seed(epoch)):
                step += 1
                found = actor.imitate(chosen, step=step)
                metrics.add(step, {"loss": found["loss"], "gradient_norm": found["grad_norm"], "epoch": epoch + 1})
            stage.progress(stage.name, f"epoch {epoch + 1}/{options.epochs}: loss {metrics.lines[-1]['loss']:.4g}")
        policy = actor.save_model(stage.policy, stage.directory / "policy")
    return StageResult(policy, steps=step, numbers={"played": funnel.played, "kept": funnel.kept})


def sampled(stage: TrainingStage) -> list[Episode]:
    """Returns the episodes of the stage `sample`. Raises UsageError if there are none."""
    episodes = read_episodes(stage.run / "sample" / EPISODES_FILE)
    if not episodes:
        raise UsageError(f"{stage.run} has no sampled episodes", "Run cuda-agent train sample first")
    return episodes


def say_funnel(funnel: EpisodeFunnel) -> str:
    """Returns a line such as `40 played, 12 kept; dropped: reward 25, invalid_call 3`."""
    dropped = ", ".join(f"{reason} {count}" for reason, count in funnel.dropped.items())
    return f"{funnel.played} played, {funnel.kept} kept" + (f"; dropped: {dropped}" if dropped else "")
