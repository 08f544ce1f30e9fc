"""Translates our options to overrides for verl's trainer."""

from pathlib import Path
from typing import Any

from cuda_agent.core.errors import UsageError
from cuda_agent.training.config import PpoOptions, TrainingOptions
from cuda_agent.training.engine.compose import actor_overrides, critic_overrides, override_lines

LOOP = "cuda_agent"
TASKS_FILE = "tasks.parquet"
LOOP_FILE = "loop.yaml"
CHECKPOINTS = "verl"
_TEMPLATES = Path(__file__).with_name("verl")
#: parts of overrides that Megatron doesn't have; its sharding and precision are its own.
_FSDP = ("fsdp", "strategy=", "use_torch_compile", "model.lora_", "lora.merge")


def ray_overrides(options: TrainingOptions, stage: PpoOptions, actor: str, critic: str, directory: str) -> list[str]:
    """Returns all overrides of a stage. `actor` and `critic` are folders of models; `directory` is the stage's."""
    ray = options.ray
    context = stage.limits.context_tokens or options.model.context_tokens
    model = options.model.model_copy(update={"context_tokens": context})
    megatron = ray.backend == "megatron"
    models = actor_overrides(model, actor, stage) + critic_overrides(model, critic, stage)
    if megatron:
        models = [line for line in models if not any(word in line for word in _FSDP)]
    names = {"loop": LOOP, "loop_file": LOOP_FILE, "tasks_file": TASKS_FILE, "checkpoints": CHECKPOINTS}
    return [
        f"model_engine={'megatron' if megatron else 'dp'}",
        *models,
        *override_lines(_TEMPLATES / "sharding.j2", ray=ray, model=model, megatron=megatron),
        *override_lines(
            _TEMPLATES / "trainer.j2", options=options, ray=ray, model=model, stage=stage, directory=Path(directory),
            **names,
        ),
    ]  # fmt: skip


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
