"""Runs a training: its folder, the order of the stages, the models that each starts from, and resumption."""

import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent.agent.storage.rundir import RunDirectory, current_commit, provenance
from cuda_agent.agent.trained.checkpoint import load_dialogue, load_settings
from cuda_agent.agent.trained.dialogue import DialogueSettings
from cuda_agent.core.errors import UsageError
from cuda_agent.core.files import write_durably
from cuda_agent.core.record import now
from cuda_agent.core.settings import differing
from cuda_agent.training.config import PpoOptions, TrainingOptions
from cuda_agent.training.environment.opening import limited
from cuda_agent.training.memory import StageMemory, count
from cuda_agent.training.stages.records import STAGES, StageEnd, TrainingManifest
from cuda_agent.training.stages.stage import Domain, Progress, StageResult, TrainingStage

#: settings that may change when a run resumes. More steps lengthen a stage that hasn't ended.
_MAY_CHANGE = ("protect.", "warmup.steps", "ppo.steps", "warmup.save_every", "ppo.save_every")


@dataclass
class Training:
    """A training in `directory`, which is created if necessary."""

    directory: Path
    options: TrainingOptions
    domain: Domain
    progress: Progress = lambda phase, text: None

    def run(self, stages: Sequence[str]) -> TrainingManifest:
        """Runs these stages, except those that have ended. Raises UsageError if an earlier stage is missing or the
        folder holds another training, and TrainingHalted, StoreError, DeviceError."""
        from cuda_agent.training.engine import platform

        self.directory.mkdir(parents=True, exist_ok=True)
        with RunDirectory(self.directory).lock():
            manifest = self._begin()
            device = platform.prepare(self.options.device)
            check(self.options)
            for name in stages:
                if manifest.ended(name) is not None:
                    self.progress(name, "has ended")
                elif self._is_wanted(name):
                    manifest = self._run(name, manifest, device)
            return manifest

    def _is_wanted(self, name: str) -> bool:
        return name == "base" or getattr(self.options, name) is not None

    def _begin(self) -> TrainingManifest:
        configuration = self.options.model_dump(mode="json")
        manifest = TrainingManifest.find(self.directory)
        if manifest is None:
            manifest = TrainingManifest(
                command=tuple(sys.argv),
                configuration=configuration,
                started=now(),
                **provenance(),
            )
        else:
            changed = differing(manifest.configuration, configuration)
            fixed = [name for name in changed if not name.startswith(_MAY_CHANGE)]
            if fixed:
                raise UsageError(
                    f"{self.directory} holds a training with another configuration: {', '.join(fixed)} differ",
                    "Choose another --out, or give the configuration that it was begun with",
                )
            said = f"{now()} commit {current_commit()}" + (f"; changed: {', '.join(changed)}" if changed else "")
            update = {"configuration": configuration, "resumed": (*manifest.resumed, said)}
            manifest = manifest.model_copy(update=update)
        write_durably(self.directory / "config.json", json.dumps(configuration, indent=1) + "\n")
        manifest.write(self.directory)
        return manifest

    def _run(self, name: str, manifest: TrainingManifest, device: str) -> TrainingManifest:
        from torch import cuda

        started = time.monotonic()
        self.progress(name, "begins")
        stage = self._stage(name, manifest, device)
        stage.directory.mkdir(parents=True, exist_ok=True)
        result = _play(stage)
        # Engines reference each other in cycles; the next steps and other processes need their memory.
        gc.collect()
        cuda.empty_cache()
        numbers = dict(result.numbers or {})
        if result.policy is not None and self.options.evaluate:
            numbers |= self._evaluate(stage, result.policy)
        end = StageEnd(
            stage=name,
            ended=now(),
            wall_s=time.monotonic() - started,
            steps=result.steps,
            policy=self._relative(result.policy),
            critic=self._relative(result.critic),
            numbers=numbers,
        )
        manifest = manifest.model_copy(update={"stages": (*manifest.stages, end)})
        manifest.write(self.directory)
        for state in stage.directory.glob("step-*"):
            shutil.rmtree(state)
        self.progress(name, f"ended after {end.wall_s:.0f} s")
        return manifest

    def _stage(self, name: str, manifest: TrainingManifest, device: str) -> TrainingStage:
        """Returns a stage with the models it starts from. Raises UsageError if an earlier stage hasn't ended."""
        for earlier in STAGES[: STAGES.index(name)]:
            if self._is_wanted(earlier) and manifest.ended(earlier) is None:
                raise UsageError(f"{name} comes after {earlier}, which has not ended", f"cuda-agent train {earlier} …")
        policy = manifest.latest("policy", name)
        critic = manifest.latest("critic", name)
        if self.options.value is None and name == "ppo":
            # Without value pretraining the critic is new: the warm-up's critic would be pretrained in another way.
            critic = None
        return TrainingStage(
            name=name,
            run=self.directory,
            options=self.options,
            domain=self.domain,
            device=device,
            policy=str(self.directory / policy) if policy is not None else "",
            critic=str(self.directory / critic) if critic is not None else None,
            progress=self.progress,
        )

    def _evaluate(self, stage: TrainingStage, policy: Path) -> dict[str, float]:
        directory = self.directory / "held-out" / stage.name
        directory.mkdir(parents=True, exist_ok=True)
        numbers = self.domain.evaluate(policy, directory)
        return {f"held_out_{name}": value for name, value in numbers.items()}

    def _relative(self, path: Path | None) -> str | None:
        return None if path is None else str(path.relative_to(self.directory))


def _play(stage: TrainingStage) -> StageResult:
    if stage.name == "base":
        return _base(stage)
    from cuda_agent.training.ray.launch import launch
    from cuda_agent.training.stages.ppo import play_ppo
    from cuda_agent.training.stages.rft import fine_tune
    from cuda_agent.training.stages.sample import sample
    from cuda_agent.training.stages.value import pretrain_values

    options = getattr(stage.options, stage.name)
    learn: dict[str, Callable[[TrainingStage, Any], StageResult]]
    learn = {"sample": sample, "rft": fine_tune, "value": pretrain_values}
    if stage.name in learn:
        return learn[stage.name](stage, options)
    ppo = launch if stage.options.launcher == "ray" else play_ppo
    return ppo(stage, options)


def _base(stage: TrainingStage) -> StageResult:
    from cuda_agent.training.engine.checkpoints import save_policy

    path, options = stage.options.model.path, stage.options
    if path is None:
        return StageResult(save_policy((), str(stage.domain.base(stage.directory)), stage.directory / "policy"))
    settings = load_settings(Path(path))
    for played in (options.warmup, options.sample, options.ppo):
        if played is not None:
            single = played is options.warmup or not options.agent_loop
            load_dialogue(Path(path), limited(settings, played.limits.single() if single else played.limits))
    policy = save_policy((), path, stage.directory / "policy")
    if DialogueSettings.find(policy) is None:
        last = options.ppo or options.sample
        # In the end the policy is played as it was trained last.
        (limited(settings, last.limits) if last is not None else settings).write(policy)
    return StageResult(policy)


def check(options: TrainingOptions) -> list[StageMemory]:
    """Composes every stage with verl, with placeholders for models that don't exist yet, and returns the memory that
    each needs. Raises UsageError and DeviceError."""
    from cuda_agent.training.engine import platform
    from cuda_agent.training.engine.compose import compose, embedded
    from cuda_agent.training.ray.overrides import ray_overrides, sharded_overrides

    platform.prepare(options.device)
    for stage in (options.warmup, options.rft, options.value, options.ppo):
        if stage is None:
            continue
        if options.launcher != "ray":
            compose(embedded(options.model, "actor", "critic", stage))
        elif isinstance(stage, PpoOptions):
            compose(ray_overrides(options, stage, "actor", "critic", os.curdir))
        else:
            compose(sharded_overrides(options, stage, "actor", "critic"))
    return count(options)
