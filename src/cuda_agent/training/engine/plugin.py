"""The plugin that verl 0.9.1 imports in each of its processes (`VERL_USE_EXTERNAL_MODULES`).

It adds what verl lacks: a CPU platform with engines, a critic without flash-attention and without trl, and a process
group of gloo alone. Importing this module has effects, unlike our other modules, because verl has no other hook.
"""

import os
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _gives(answer: Any = None) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _device_module() -> Any:
    """Returns a stand-in for `torch.cuda` on a CPU, without device memory and with nothing to wait for."""
    module: Any = types.ModuleType("cuda_agent_cpu")
    answers: dict[str, Any] = {
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"), 0),
        **dict.fromkeys(("empty_cache", "synchronize", "set_device", "reset_peak_memory_stats", "ipc_collect")),
        **dict.fromkeys(("manual_seed", "manual_seed_all")),
        **dict.fromkeys(("is_available", "is_initialized"), True),
        "device_count": 1,
        "current_device": 0,
        "mem_get_info": (1 << 33, 1 << 34),
        "get_device_name": "cpu",
        "get_device_properties": types.SimpleNamespace(total_memory=1 << 34, name="cpu"),
    }
    for name, answer in answers.items():
        setattr(module, name, _gives(answer))
    module.get_rng_state = lambda *_, **__: torch.get_rng_state()
    module.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    module.device = torch.device
    return module


_CPU = _device_module()


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """A CPU as a device of verl: without device memory, and with nothing to wait for."""

    device_name = vendor_name = property(_gives("cpu"))
    device_module = property(_gives(_CPU))
    is_available = _gives(True)
    current_device = _gives(torch.device("cpu"))
    device_count = _gives(1)
    get_device_capability = _gives((None, None))
    communication_backend_name = _gives("gloo")
    visible_devices_envvar = _gives("VERL_CPU_VISIBLE_DEVICES")
    ray_resource_name = _gives("CPU")
    is_ipc_supported = _gives(False)
    set_device = synchronize = set_allocator_settings = empty_cache = cudart = _gives()
    profiler_start = profiler_stop = _gives()

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def nvtx_range(self, msg: str) -> AbstractContextManager[None]:
        return nullcontext()

    def ray_noset_envvars(self) -> list[str]:
        return []

    def ray_resource_options(self, num_gpus: float) -> dict[str, float]:
        return {"num_cpus": num_gpus}


def _one_gloo() -> None:
    """Makes torch accept verl's backend `cpu:gloo,cpu:gloo`, which names the same device twice."""
    begin = torch.distributed.init_process_group

    def init_process_group(backend: str | None = None, *rest: Any, **named: Any) -> Any:
        return begin("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *rest, **named)

    torch.distributed.init_process_group = init_process_group


def _cpu_engines() -> None:
    import verl.workers.engine.fsdp.transformer_impl as fsdp
    from verl.workers.engine.base import EngineRegistry

    kinds = (("language_model", fsdp.FSDPEngineWithLMHead), ("value_model", fsdp.FSDPEngineWithValueHead))
    for model_type, engine in kinds:
        if "cpu" not in EngineRegistry._engines[model_type]["fsdp2"]:
            EngineRegistry.register(model_type=model_type, backend="fsdp2", device="cpu")(engine)


def _any_attention() -> None:
    """Makes verl load a critic with the model's attention instead of flash-attention. verl would look for its own
    critic's class in trl where that is installed; today's trl has none."""
    import verl.models.transformers.monkey_patch as monkey_patch
    import verl.utils.model as model

    def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        loaded: Any = AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation=model_config._attn_implementation,
            trust_remote_code=trust_remote_code,
        )
        # With adapters, verl declares the critic a language model, of which peft keeps this method.
        loaded.prepare_inputs_for_generation = None
        return loaded

    model.load_valuehead_model = load_valuehead_model
    monkey_patch.is_trl_available = _gives(False)


def _whole_heads() -> None:
    """Makes verl train a critic's head as a whole beside the adapters, which leave it out (`critic.j2`)."""
    import verl.workers.engine.fsdp.transformer_impl as fsdp

    engine = fsdp.FSDPEngineWithValueHead
    if "_build_lora_module" in vars(engine):
        return
    build = engine._build_lora_module

    def build_lora_module(self: Any, module: Any) -> Any:
        found = build(self, module)
        found.get_base_model().score.requires_grad_(True)
        return found

    engine._build_lora_module = build_lora_module


def install() -> None:
    """Installs the parts that import more of verl than its start allows. It may be called repeatedly."""
    if os.environ.get("VERL_PLATFORM") == "cpu":
        _cpu_engines()
    _any_attention()
    _whole_heads()


if os.environ.get("VERL_PLATFORM") == "cpu":
    _one_gloo()
