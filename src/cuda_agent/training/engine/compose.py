"""Translates our options to overrides of verl's configuration. verl's schema refuses unknown keys."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda_agent.core.assets import filled
from cuda_agent.core.errors import DeviceError, UsageError
from cuda_agent.training.config import ModelOptions, PpoOptions, RftOptions, ValueOptions

#: "no limit" for settings of verl that must be a number: above any ratio, value or reward, and exact in float32.
UNLIMITED = 1e9
_TEMPLATES = Path(__file__).with_name("verl")


def compose(overrides: Sequence[str]) -> Any:
    """Returns verl's `ppo_trainer` with these overrides. Raises UsageError for a key that verl doesn't know,
    DeviceError if verl isn't installed."""
    try:
        import hydra
        import verl  # noqa: F401
        from hydra.errors import HydraException
    except ImportError as error:
        raise DeviceError(
            f"verl can't be imported ({error.name or error})", "make train-env, see docs/training.md"
        ) from None
    try:
        with hydra.initialize_config_module("verl.trainer.config", version_base=None):
            return hydra.compose("ppo_trainer", overrides=list(overrides))
    except HydraException as error:
        raise UsageError(f"verl refuses the configuration: {' '.join(str(error).split())}") from None


def actor_overrides(model: ModelOptions, path: str, stage: PpoOptions | RftOptions) -> list[str]:
    """Returns overrides for the actor: model, precision, optimiser and objective."""
    return override_lines(_TEMPLATES / "actor.j2", model=model, path=path, **_of_stage(stage))


def critic_overrides(model: ModelOptions, path: str, stage: PpoOptions | ValueOptions) -> list[str]:
    """Returns overrides for the critic: model, precision, optimiser and loss. It has the actor's size, adapters of
    the same rank, and a head that is trained whole."""
    return override_lines(_TEMPLATES / "critic.j2", model=model, path=path, **_of_stage(stage))


def override_lines(template: Path, **values: Any) -> list[str]:
    """Returns the overrides of a template, which has one in each line."""
    return [line for line in filled(template, **values).splitlines() if line]


def _of_stage(stage: PpoOptions | RftOptions | ValueOptions) -> dict[str, Any]:
    ppo = isinstance(stage, PpoOptions)
    return {"stage": stage, "ppo": ppo, "mini_batch": mini_batch(stage), "unlimited": UNLIMITED}


def mini_batch(stage: PpoOptions | RftOptions | ValueOptions) -> int:
    """Returns the episodes of one update."""
    return stage.mini_batch or stage.batch if isinstance(stage, PpoOptions) else stage.batch


def embedded(model: ModelOptions, actor: str, critic: str, stage: PpoOptions | RftOptions | ValueOptions) -> list[str]:
    """Returns overrides for one stage in this process. `actor` and `critic` are folders of models."""
    return [*ALONE, *both_overrides(model, actor, critic, stage)]


#: overrides where verl's trainer isn't used.
ALONE = (
    "model_engine=dp",
    "actor_rollout_ref.rollout.name=hf",
    "reward.reward_model.rollout.name=hf",
    "trainer.n_gpus_per_node=1",
)


def both_overrides(
    model: ModelOptions, actor: str, critic: str, stage: PpoOptions | RftOptions | ValueOptions
) -> list[str]:
    """Returns overrides for actor and critic, which verl composes together. The one that isn't trained gets placeholder
    options."""
    spare = PpoOptions(
        steps=1, batch=stage.batch, actor_lr=1e-6, critic_lr=1e-6, micro_batch_tokens=stage.micro_batch_tokens
    )
    return [
        *actor_overrides(model, actor, spare if isinstance(stage, ValueOptions) else stage),
        *critic_overrides(model, critic, spare if isinstance(stage, RftOptions) else stage),
    ]
