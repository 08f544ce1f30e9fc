"""PPO with a critic, for the warm-up in single turns and for the agentic stage. A step plays, judges, learns, checks
and saves."""

import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from cuda_agent.core.errors import StoreError
from cuda_agent.core.lines import append, write_lines
from cuda_agent.training.config import PpoOptions
from cuda_agent.training.engine.advantages import estimate, log_ratios, mismatched
from cuda_agent.training.engine.batch import response_masks
from cuda_agent.training.engine.checkpoints import fresh_folder, replace_folder, save_critic, save_policy
from cuda_agent.training.engine.sampler import PolicyCopy
from cuda_agent.training.engine.worker import Actor, Critic, open_actor, open_critic
from cuda_agent.training.episodes import EPISODES_FILE, Episode, read_episodes, rewarded
from cuda_agent.training.metrics import MetricsLog, of_episodes
from cuda_agent.training.stages.curriculum import draw_by_rates, pass_rates
from cuda_agent.training.stages.records import Position, read_position
from cuda_agent.training.stages.stage import OpenDomain, StageResult, TrainingStage, draw_tasks


def play_ppo(stage: TrainingStage, options: PpoOptions) -> StageResult:
    """Plays and learns until all steps are done. Raises TrainingHalted and what the environment raises."""
    stage.check_not_halted()
    policy, critic = stage.directory / "policy", stage.directory / "critic"
    if read_position(stage.directory).next_step > options.steps and policy.exists() and critic.exists():
        # The last step is done, as after a kill during the evaluation that follows it.
        return StageResult(policy, critic, options.steps)
    with ExitStack() as stack:
        loop = _Loop(stage, options, stack)
        for step in range(loop.first, options.steps + 1):
            loop.step(step)
        return loop.end()


class _Loop:
    def __init__(self, stage: TrainingStage, options: PpoOptions, stack: ExitStack) -> None:
        self._stage, self._options = stage, options
        model = stage.options.model
        position = read_position(stage.directory)
        self.first = position.next_step
        critic = stage.critic or stage.policy
        self._actor: Actor = open_actor(model, stage.policy, options, seed=stage.seed(0))
        self._critic: Critic = open_critic(model, critic, options, seed=stage.seed(0))
        if position.state is not None:
            self._actor.load(stage.directory / position.state / "actor")
            self._critic.load(stage.directory / position.state / "critic")
            stage.progress(stage.name, f"goes on at step {self.first} of {options.steps}")
        self._sampler = PolicyCopy(Path(stage.policy), model, device=stage.device)
        self._metrics = stack.enter_context(MetricsLog(stage.run, stage.name, from_step=self.first))
        self._opened: OpenDomain = stack.enter_context(
            stage.domain.open(Path(stage.policy), stage.limits(options.limits))
        )
        self._forget_later_episodes()

    def step(self, step: int) -> None:
        started = time.monotonic()
        self._sampler.load(self._actor.weights())
        episodes = self._play(step)
        played_s = time.monotonic() - started
        numbers = self._learn(step, episodes)
        numbers |= {"play_s": played_s, "learn_s": time.monotonic() - started - played_s}
        numbers["wall_s"] = time.monotonic() - started
        saved = read_position(self._stage.directory).state
        policy = f"{self._stage.name}/{saved}/policy" if saved is not None else None
        self._stage.log(self._metrics, step, self._options.steps, numbers, policy)
        if step % self._options.save_every == 0 or step == self._options.steps:
            self._save(step)

    def _play(self, step: int) -> list[Episode]:
        """Returns the step's episodes: those before a kill if they are complete, else new ones."""
        path = self._stage.directory / EPISODES_FILE
        every = read_episodes(path)
        done = [one for one in every if one.policy_version == step]
        if len(done) == self._options.batch:
            return done
        seed = self._stage.seed(step)
        opened = self._opened
        batch, curriculum = self._options.batch, self._options.curriculum
        if curriculum is None:
            tasks = draw_tasks(opened.tasks, batch, seed)
        else:
            rates = pass_rates(every, opened.tasks, step, curriculum.steps)
            tasks = draw_by_rates(opened.tasks, batch, seed, rates, curriculum)
        generate = self._sampler.generate(
            turn_tokens=opened.turn_tokens, context_tokens=opened.context_tokens, seed=seed
        )
        episodes = opened.environment.play(tasks, generate, seed=seed, policy_version=step)
        append(path, episodes)
        return episodes

    def _learn(self, step: int, episodes: Sequence[Episode]) -> dict[str, float]:
        kind = self._stage.options.reward
        numbers = of_episodes(episodes, kind)
        known, rewards = rewarded(episodes, kind)
        if not known:
            self._stage.progress(self._stage.name, f"step {step}: the judge failed on every episode; nothing is learnt")
            return numbers
        return numbers | self._update(step, known, rewards)

    def _update(self, step: int, episodes: Sequence[Episode], rewards: Sequence[float]) -> dict[str, float]:
        """Computes old log-probabilities and values, then updates the critic, then the actor."""
        options = self._options
        masks = response_masks(episodes)
        trainer, entropy = self._actor.log_probabilities_and_entropy(episodes)
        sampler = [torch.tensor(one.log_probabilities) for one in episodes]
        old = sampler if options.old_log_probabilities == "sampler" else trainer
        if options.mismatch is not None:
            old = mismatched(trainer, sampler, options.mismatch.below)
        values = self._critic.values(episodes)
        found = estimate(rewards, values, masks, gamma=options.gamma, lam=options.lam, whiten=options.whiten)
        own = torch.cat(masks).bool()
        numbers = {
            "entropy": float(torch.cat(entropy)[own].mean()),
            "explained_variance": found.explained_variance,
            "advantage_std": float(torch.cat(found.advantages)[own].std()),
            "value": float(torch.cat(values)[own].mean()),
            # trainer / sampler before any update: 1 except for their precision.
            **log_ratios("ratio", trainer, sampler, masks),
        }
        numbers |= _named("critic", self._critic.update(episodes, values, found.targets, step=step))
        if step <= options.critic_only_steps:
            return numbers | {"critic_only": 1.0}
        numbers |= _named("actor", self._actor.update(episodes, old, found.advantages, step=step))
        now = self._actor.log_probabilities(episodes)
        return numbers | log_ratios("update_ratio", now, old, masks)

    def _save(self, step: int) -> None:
        """Saves models and states of this step, then the position, then removes the previous step."""
        directory = self._stage.directory
        name = f"step-{step:04d}"
        temporary = fresh_folder(directory / name)
        try:
            self._actor.save(temporary / "actor")
            self._critic.save(temporary / "critic")
        except (OSError, RuntimeError) as error:
            raise StoreError(
                f"Can't save step {step}: {error}", "Free some space; the run goes on from there"
            ) from None
        save_policy(self._actor.weights(), self._stage.policy, temporary / "policy")
        replace_folder(temporary, directory / name)
        Position(next_step=step + 1, state=name).write(directory)
        for old in directory.glob("step-*"):
            if old.name != name:
                shutil.rmtree(old)

    def end(self) -> StageResult:
        """Saves policy and critic for the next stages. The optimisers' states stay until the stage is recorded as
        ended."""
        directory, steps = self._stage.directory, self._options.steps
        like = self._stage.critic or self._stage.policy
        policy = save_policy(self._actor.weights(), self._stage.policy, directory / "policy")
        critic = save_critic(self._critic.weights(), like, directory / "critic")
        return StageResult(policy, critic, steps)

    def _forget_later_episodes(self) -> None:
        """Removes episodes of later steps, whose weights are lost, and of a step that a kill interrupted."""
        path = self._stage.directory / EPISODES_FILE
        kept = [one for one in read_episodes(path) if one.policy_version <= self.first]
        if sum(one.policy_version == self.first for one in kept) != self._options.batch:
            kept = [one for one in kept if one.policy_version < self.first]
        if path.exists():
            write_lines(path, kept)


def _named(prefix: str, metrics: dict[str, float]) -> dict[str, float]:
    """Returns verl's numbers under flat names: `actor/pg_clipfrac` is `actor_pg_clipfrac`. Its performance numbers are
    left out."""
    found = {}
    for name, value in metrics.items():
        if not name.startswith("perf/") and name not in ("mfu", "lr"):
            found[f"{prefix}_{name.removeprefix('actor/').removeprefix('critic/').replace('/', '_')}"] = value
    if f"{prefix}_pg_clipfrac" in found:
        found["clip_fraction"] = found.pop(f"{prefix}_pg_clipfrac")
    return found
