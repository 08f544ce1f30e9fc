"""The plugin that verl 0.9.1 imports in each of its processes (`VERL_USE_EXTERNAL_MODULES`).

It adds what verl lacks: a CPU platform with engines, a critic without flash-attention, and a process group of gloo
alone. Importing this module has effects, unlike our other modules, because verl has no other hook.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _device_module() -> Any:
    """Returns a stand-in for `torch.cuda` on a CPU, without device memory and with nothing to wait for."""
    module: Any = types.ModuleType("cuda_agent_cpu")
    for name in ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"):
        setattr(module, name, lambda *_, **__: 0)
    for name in ("empty_cache", "synchronize", "set_device", "reset_peak_memory_stats", "ipc_collect"):
        setattr(module, name, lambda *_, **__: None)
    module.manual_seed = module.manual_seed_all = lambda *_, **__: None
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.mem_get_info = lambda *_, **__: (1 << 33, 1 << 34)
    module.get_device_name = lambda *_, **__: "cpu"
    module.get_device_properties = lambda *_, **__: types.SimpleNamespace(total_memory=1 << 34, name="cpu")
    module.get_rng_state = lambda *_, **__: torch.get_rng_state()
    module.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    module.device = torch.device
    return module


_CPU = _device_module()


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """A CPU as a device of verl."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _CPU)

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "VERL_CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def ray_resource_options(self, num_gpus: float) -> dict[str, float]:
        return {"num_cpus": num_gpus}

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


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
    """Makes verl load a critic with the model's attention instead of flash-attention."""
    import verl.utils.model as model

    def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation=model_config._attn_implementation,
            trust_remote_code=trust_remote_code,
        )

    model.load_valuehead_model = load_valuehead_model


def install() -> None:
    """Installs the parts that import more of verl than its start allows. It may be called repeatedly."""
    if os.environ.get("VERL_PLATFORM") == "cpu":
        _cpu_engines()
    _any_attention()


if os.environ.get("VERL_PLATFORM") == "cpu":
    _one_gloo()
