"""Translates our options to overrides of verl's configuration. verl's schema refuses unknown keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuda_agent.core.errors import DeviceError, UsageError
from cuda_agent.training.config import ModelOptions, PpoOptions, RftOptions, ValueOptions

#: "no limit" for settings of verl that must be a number: above any ratio, value or reward, and exact in float32.
UNLIMITED = 1e9
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


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
    actor = "actor_rollout_ref.actor"
    found = _model("actor_rollout_ref.model", model, path)
    found += _fsdp(f"{actor}.fsdp_config", model)
    found += [
        f"{actor}.strategy=fsdp2",
        f"{actor}.use_torch_compile=false",
        f"{actor}.optim.weight_decay={stage.weight_decay}",
        f"{actor}.optim.clip_grad={stage.max_gradient_norm}",
        f"{actor}.use_dynamic_bsz=true",
        f"{actor}.ppo_max_token_len_per_gpu={stage.micro_batch_tokens}",
        f"{actor}.ppo_mini_batch_size={mini_batch(stage)}",
    ]
    if isinstance(stage, RftOptions):
        return [*found, f"{actor}.optim.lr={stage.lr}"]
    return [*found, f"{actor}.optim.lr={stage.actor_lr}", *_objective(stage)]


def critic_overrides(model: ModelOptions, path: str, stage: PpoOptions | ValueOptions) -> list[str]:
    """Returns overrides for the critic: model, precision, optimiser and loss. It has the actor's size and no
    adapters."""
    found = _model("critic.model", model.model_copy(update={"lora_rank": 0}), path)
    found += _fsdp("critic.fsdp", model)
    ppo = isinstance(stage, PpoOptions)
    value_clip = stage.value_clip if isinstance(stage, PpoOptions) else None
    return [
        *found,
        "critic.strategy=fsdp2",
        f"critic.optim.lr={stage.critic_lr if isinstance(stage, PpoOptions) else stage.lr}",
        f"critic.optim.weight_decay={stage.weight_decay}",
        f"critic.optim.clip_grad={stage.max_gradient_norm}",
        f"critic.ppo_max_token_len_per_gpu={stage.micro_batch_tokens}",
        f"critic.cliprange_value={value_clip or UNLIMITED}",
        f"critic.loss_agg_mode={stage.aggregation if isinstance(stage, PpoOptions) else 'token-mean'}",
        f"critic.ppo_epochs={stage.epochs if ppo and isinstance(stage, PpoOptions) else 1}",
        f"critic.ppo_mini_batch_size={mini_batch(stage)}",
        "critic.use_dynamic_bsz=true",
    ]


def mini_batch(stage: PpoOptions | RftOptions | ValueOptions) -> int:
    """Returns the episodes of one update."""
    if isinstance(stage, PpoOptions) and stage.mini_batch is not None:
        return stage.mini_batch
    return stage.batch


def embedded(model: ModelOptions, actor: str, critic: str, stage: PpoOptions | RftOptions | ValueOptions) -> list[str]:
    """Returns overrides for one stage in this process. `actor` and `critic` are folders of models."""
    # verl composes actor and critic together; the one that isn't trained gets placeholder options.
    spare = PpoOptions(
        steps=1, batch=stage.batch, actor_lr=1e-6, critic_lr=1e-6, micro_batch_tokens=stage.micro_batch_tokens
    )
    return [
        "model_engine=dp",
        "actor_rollout_ref.rollout.name=hf",
        "reward.reward_model.rollout.name=hf",
        "trainer.n_gpus_per_node=1",
        *actor_overrides(model, actor, spare if isinstance(stage, ValueOptions) else stage),
        *critic_overrides(model, critic, spare if isinstance(stage, RftOptions) else stage),
    ]


def _objective(stage: PpoOptions) -> list[str]:
    actor = "actor_rollout_ref.actor"
    return [
        "algorithm.adv_estimator=gae",
        f"algorithm.gamma={stage.gamma}",
        f"algorithm.lam={stage.lam}",
        "algorithm.use_kl_in_reward=false",
        f"algorithm.rollout_correction.bypass_mode={str(stage.old_log_probabilities == 'sampler').lower()}",
        f"{actor}.clip_ratio={stage.clip_low}",
        f"{actor}.clip_ratio_low={stage.clip_low}",
        f"{actor}.clip_ratio_high={stage.clip_high}",
        f"{actor}.clip_ratio_c={stage.dual_clip or UNLIMITED}",
        f"{actor}.loss_agg_mode={stage.aggregation}",
        f"{actor}.entropy_coeff={stage.entropy_coefficient}",
        f"{actor}.use_kl_loss=false",
        f"{actor}.ppo_epochs={stage.epochs}",
    ]


def _model(key: str, model: ModelOptions, path: str) -> list[str]:
    flash = model.attention == "flash_attention_2"
    return [
        f"{key}.path={path}",
        f"{key}.use_remove_padding={str(flash).lower()}",
        f"+{key}.override_config.attn_implementation={model.attention}",
        f"{key}.enable_gradient_checkpointing={str(model.gradient_checkpointing).lower()}",
        f"{key}.lora_rank={model.lora_rank}",
        f"{key}.lora_alpha={model.lora_alpha}",
        # the sampler takes merged weights, so checkpoints need no adapter.
        f"{key}.lora.merge={str(model.lora_rank > 0).lower()}",
    ]


def _fsdp(key: str, model: ModelOptions) -> list[str]:
    return [
        f"+{key}.mixed_precision.param_dtype={_SHORT[model.train_precision]}",
        f"+{key}.mixed_precision.reduce_dtype=fp32",
        f"{key}.use_torch_compile=false",
    ]
