"""Translates our options to overrides for verl's trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cuda_agent.core.errors import UsageError
from cuda_agent.training.config import PpoOptions, TrainingOptions
from cuda_agent.training.engine.compose import actor_overrides, critic_overrides, mini_batch

LOOP = "cuda_agent"
TASKS_FILE = "tasks.parquet"
LOOP_FILE = "loop.yaml"
CHECKPOINTS = "verl"


def ray_overrides(options: TrainingOptions, stage: PpoOptions, actor: str, critic: str, directory: str) -> list[str]:
    """Returns all overrides of a stage. `actor` and `critic` are folders of models; `directory` is the stage's."""
    model, ray = options.model, options.ray
    if ray.backend == "megatron":
        models = _megatron(options, stage, actor, critic)
    else:
        models = [
            "model_engine=dp",
            *actor_overrides(model, actor, stage),
            *critic_overrides(model, critic, stage),
            *_sharded(options),
        ]
    return [
        *models,
        *_rollout(options, directory),
        *_data(options, stage, directory),
        *_trainer(options, stage, directory),
    ]


def validated(config: Any) -> Any:
    """Runs verl's checks of a composed configuration, such as batches that divide among GPUs. Raises UsageError."""
    from verl.experimental.reward_loop import migrate_legacy_reward_impl
    from verl.utils.config import validate_config

    found = migrate_legacy_reward_impl(config)
    try:
        validate_config(config=found, use_reference_policy=False, use_critic=True)
    except (AssertionError, ValueError) as error:
        raise UsageError(f"verl refuses the configuration: {' '.join(str(error).split())}") from None
    return found


def _sharded(options: TrainingOptions) -> list[str]:
    """Returns overrides for FSDP2: what is offloaded between uses, and how many GPUs share one long sequence."""
    ray, found = options.ray, []
    for key, part in (("actor_rollout_ref.actor", "fsdp_config"), ("critic", "fsdp")):
        found += [
            f"{key}.{part}.param_offload={str(ray.offload).lower()}",
            f"{key}.{part}.optimizer_offload={str(ray.offload).lower()}",
            f"{key}.{part}.ulysses_sequence_parallel_size={ray.sequence_parallel}",
        ]
    return found


def _megatron(options: TrainingOptions, stage: PpoOptions, actor: str, critic: str) -> list[str]:
    """Returns the same objective with Megatron's sharding and precision."""
    own = ("fsdp", "strategy=", "use_torch_compile", "model.lora_", "lora.merge")
    both = actor_overrides(options.model, actor, stage) + critic_overrides(options.model, critic, stage)
    found = ["model_engine=megatron", *(one for one in both if not any(word in one for word in own))]
    for key in ("actor_rollout_ref.actor.megatron", "critic.megatron"):
        found += [
            f"{key}.tensor_model_parallel_size={options.ray.tensor_parallel}",
            f"{key}.context_parallel_size={options.ray.sequence_parallel}",
            f"{key}.param_offload={str(options.ray.offload).lower()}",
            f"{key}.optimizer_offload={str(options.ray.offload).lower()}",
            f"{key}.dtype={options.model.train_precision}",
        ]
    return found


def _rollout(options: TrainingOptions, directory: str) -> list[str]:
    key, ray, model = "actor_rollout_ref.rollout", options.ray, options.model
    name = ray.rollout
    return [
        f"{key}.name={name}",
        f"{key}.dtype={model.sample_precision}",
        f"{key}.tensor_model_parallel_size={ray.tensor_parallel if name != 'transformers' else 1}",
        f"{key}.gpu_memory_utilization={ray.gpu_memory_utilization}",
        f"{key}.free_cache_engine={str(name != 'transformers').lower()}",
        f"{key}.load_format={'auto' if name == 'transformers' else 'dummy'}",
        f"{key}.max_model_len={model.context_tokens}",
        f"{key}.temperature=1.0",
        f"{key}.top_p=1",
        f"{key}.top_k=-1",
        f"{key}.n=1",
        f"{key}.calculate_log_probs=true",
        f"{key}.log_prob_use_dynamic_bsz=true",
        # our loop runs the tools; verl's tools and their limits are unused.
        f"{key}.multi_turn.enable=false",
        f"{key}.agent.num_workers={ray.agent_workers}",
        f"{key}.agent.agent_loop_config_path={Path(directory, LOOP_FILE)}",
        f"{key}.agent.default_agent_loop={LOOP}",
        "reward.num_workers=1",
        "reward.reward_model.enable=false",
        "reward.reward_model.rollout.name=vllm",
    ]


def _data(options: TrainingOptions, stage: PpoOptions, directory: str) -> list[str]:
    model, tasks = options.model, Path(directory, TASKS_FILE)
    return [
        f"data.train_files={tasks}",
        f"data.val_files={tasks}",
        f"data.train_batch_size={stage.batch}",
        f"data.max_prompt_length={model.prompt_tokens}",
        f"data.max_response_length={model.context_tokens - model.prompt_tokens}",
        "data.dataloader_num_workers=0",
        # the file holds the batches in order.
        "data.shuffle=false",
        f"data.seed={options.seed}",
    ]


def _trainer(options: TrainingOptions, stage: PpoOptions, directory: str) -> list[str]:
    ray = options.ray
    whole = "[model,optimizer,extra,hf_model]"
    return [
        f"trainer.n_gpus_per_node={ray.gpus_per_node}",
        f"trainer.nnodes={ray.nodes}",
        f"trainer.total_training_steps={stage.steps}",
        "trainer.total_epochs=1",
        # verl trains the actor from this step on.
        f"trainer.critic_warmup={stage.critic_only_steps + 1}",
        f"trainer.save_freq={stage.save_every}",
        "trainer.max_actor_ckpt_to_keep=2",
        "trainer.max_critic_ckpt_to_keep=2",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.logger=[file]",
        "trainer.resume_mode=auto",
        f"trainer.default_local_dir={Path(directory, CHECKPOINTS)}",
        f"trainer.project_name={options.name}",
        f"actor_rollout_ref.actor.checkpoint.save_contents={whole}",
        f"critic.checkpoint.save_contents={whole}",
        f"critic.ppo_mini_batch_size={mini_batch(stage)}",
        "actor_rollout_ref.actor.calculate_entropy=true",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    ]


def process_overrides(device: str, environment: dict[str, str], address: str | None) -> list[str]:
    """Returns overrides for Ray itself. `environment` has the variables of all its processes."""
    found = [f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}='{value}'" for name, value in environment.items()]
    found.append(f"trainer.device={device}")
    if address is not None:
        return [*found, f"+ray_kwargs.ray_init.address='{address}'"]
    found.append("+ray_kwargs.ray_init.include_dashboard=false")
    if device == "cpu":
        # Each worker requests a GPU. There is none, so one is declared.
        found += ["+ray_kwargs.ray_init.num_gpus=1", "ray_kwargs.ray_init.num_cpus=32"]
    return found
