"""Value pretraining of the critic on all episodes. Each pass computes V anew, takes V + A as the target, and minimises
half the mean squared error to it (paper, "Training", step 4)."""

import math
from collections.abc import Sequence

from torch import Tensor

from cuda_agent.core.errors import UsageError
from cuda_agent.training.config import ValueOptions
from cuda_agent.training.engine.advantages import Advantages, estimate
from cuda_agent.training.engine.batch import mini_batches, response_masks
from cuda_agent.training.engine.worker import open_critic
from cuda_agent.training.episodes import Episode, rewarded
from cuda_agent.training.metrics import MetricsLog
from cuda_agent.training.ray.shards import workers
from cuda_agent.training.stages.rft import sampled
from cuda_agent.training.stages.stage import StageResult, TrainingStage


def pretrain_values(stage: TrainingStage, options: ValueOptions) -> StageResult:
    """Pretrains the critic. Truncated and failed episodes count; only episodes where the judge failed have no reward
    and are left out. The stage is short, so a kill restarts it."""
    episodes, rewards = rewarded(sampled(stage), stage.options.reward)
    if not episodes:
        raise UsageError("The judge failed on every sampled episode", "Sample again: cuda-agent train sample")
    like = stage.critic or stage.policy
    step, found = 0, None
    with workers(stage) as make, MetricsLog(stage.run, stage.name, from_step=1) as metrics:
        critic = open_critic(stage.options.model, like, options, seed=stage.seed(0), make=make)
        for number in range(options.passes):
            values = critic.values(episodes)
            found = _targets(episodes, rewards, values, options)
            losses = []
            for chosen in mini_batches(range(len(episodes)), options.batch, stage.seed(number)):
                step += 1
                update = critic.update(
                    [episodes[row] for row in chosen],
                    [values[row] for row in chosen],
                    [found.targets[row] for row in chosen],
                    step=step,
                )
                losses.append(update["critic/vf_loss"])
            loss = math.fsum(losses) / len(losses)
            numbers = {"value_loss": loss, "explained_variance": found.explained_variance}
            metrics.add(number + 1, numbers)
            stage.progress(
                stage.name,
                f"pass {number + 1}/{options.passes}: loss {loss:.4g}, explained variance before it "
                f"{found.explained_variance:.3g}",
            )
        last = _targets(episodes, rewards, critic.values(episodes), options)
        path = critic.save_model(like, stage.directory / "critic")
    return StageResult(critic=path, steps=step, numbers={"explained_variance": last.explained_variance})


def _targets(
    episodes: Sequence[Episode], rewards: Sequence[float], values: Sequence[Tensor], options: ValueOptions
) -> Advantages:
    masks = response_masks(episodes)
    return estimate(rewards, values, masks, gamma=options.gamma, lam=options.lam, whiten=False)
