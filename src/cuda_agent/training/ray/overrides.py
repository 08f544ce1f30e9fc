"""Translates our options to overrides for verl's trainer."""

import os
import sys
from pathlib import Path
from typing import Any

from cuda_agent.core.errors import UsageError
from cuda_agent.training.config import PpoOptions, RayOptions, RftOptions, TrainingOptions, ValueOptions
from cuda_agent.training.engine import platform
from cuda_agent.training.engine.compose import both_overrides, override_lines

LOOP = "cuda_agent"
TASKS_FILE = "tasks.parquet"
LOOP_FILE = "loop.yaml"
CHECKPOINTS = "verl"
_TEMPLATES = Path(__file__).with_name("verl")
#: parts of overrides that Megatron doesn't have; its sharding and precision are its own.
_FSDP = ("fsdp", "strategy=", "use_torch_compile", "model.lora_", "lora.merge")


def ray_overrides(options: TrainingOptions, stage: PpoOptions, actor: str, critic: str, directory: str) -> list[str]:
    """Returns all overrides of a stage. `actor` and `critic` are folders of models; `directory` is the stage's."""
    context = stage.limits.context_tokens or options.model.context_tokens
    model = options.model.model_copy(update={"context_tokens": context})
    names = {"loop": LOOP, "loop_file": LOOP_FILE, "tasks_file": TASKS_FILE, "checkpoints": CHECKPOINTS}
    return [
        *sharded_overrides(options, stage, actor, critic),
        *override_lines(
            _TEMPLATES / "trainer.j2", options=options, ray=options.ray, model=model, stage=stage,
            directory=Path(directory), **names,
        ),
    ]  # fmt: skip


def sharded_overrides(
    options: TrainingOptions, stage: PpoOptions | RftOptions | ValueOptions, actor: str, critic: str
) -> list[str]:
    """Returns overrides for models that several GPUs share."""
    megatron = options.ray.backend == "megatron"
    models = both_overrides(options.model, actor, critic, stage)
    if megatron:
        models = [line for line in models if not any(word in line for word in _FSDP)]
    sharding = override_lines(_TEMPLATES / "sharding.j2", ray=options.ray, model=options.model, megatron=megatron)
    return [f"model_engine={'megatron' if megatron else 'dp'}", *models, *sharding]


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


def process_overrides(options: RayOptions, device: str, environment: dict[str, str]) -> list[str]:
    """Returns overrides for Ray itself. `environment` has the variables of all its processes."""
    found = [f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}='{value}'" for name, value in environment.items()]
    found.append(f"trainer.device={device}")
    for name, value in cluster_settings(options, device).items():
        new = "" if name == "num_cpus" else "+"
        found.append(f"{new}ray_kwargs.ray_init.{name}={repr(value).lower() if name != 'address' else repr(value)}")
    return found


def cluster_settings(options: RayOptions, device: str) -> dict[str, Any]:
    """Returns the arguments of `ray.init`: a running cluster, or one of this machine."""
    if options.address is not None:
        return {"address": options.address}
    # Each worker requests a GPU. On a CPU there is none, so some are declared.
    return {"include_dashboard": False} | (
        {"num_gpus": options.gpus_per_node, "num_cpus": 32} if device == "cpu" else {}
    )


def process_environment(device: str) -> dict[str, str]:
    """Returns variables for every process. Ray must not hide GPUs: the judge's processes find theirs themselves."""
    return {
        **platform.environment(device),
        "VERL_USE_EXTERNAL_MODULES": f"{platform.PLUGIN},cuda_agent.training.ray.plugin",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # a busy machine needs more than Ray's 30 s to start a cluster.
        "RAY_raylet_start_wait_time_s": "300",
    }
