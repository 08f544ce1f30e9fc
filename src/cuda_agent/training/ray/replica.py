"""A rollout server for verl that samples with transformers, for a CPU and for GPUs without vLLM and SGLang.

It draws for one episode at a time, so it is slow and only for small models. It keeps the key-value caches of as many
episodes as fit into its share of the memory.
"""

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray
import torch
from verl.workers.rollout import base, replica

from cuda_agent.agent.trained.sampler import Sampler


class Server:
    """A Ray actor with a copy of the policy."""

    def __init__(self, path: str, precision: str, context_tokens: int) -> None:
        from cuda_agent.training.config import ModelOptions
        from cuda_agent.training.engine.sampler import PolicyCopy

        torch.set_num_threads(1)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        options = ModelOptions.model_validate({"sample_precision": precision})
        self._policy = PolicyCopy(Path(path), options, device=device)
        self._lock = threading.Lock()
        self._step = self._drawn = 0
        self._context_tokens = context_tokens
        #: episode -> its sampler, the latest last.
        self._samplers: OrderedDict[str, Sampler] = OrderedDict()

    def load(self, weights: dict[str, torch.Tensor], step: int | None) -> None:
        """Loads weights by name; they are on the CPU."""
        with self._lock:
            self._policy.load(weights.items())
            self._samplers.clear()
            self._step = step or 0

    def _draw(self, episode: str, context: list[int], room: int) -> tuple[list[int], list[float], int]:
        with self._lock:
            self._drawn += 1
            seed = hash((self._step, self._drawn, tuple(context))) & 0x7FFFFFFF
            sampler = self._samplers.pop(episode, None) or self._policy.generate(
                turn_tokens=room, context_tokens=self._context_tokens, seed=seed
            )
            self._samplers[episode] = sampler
            while len(self._samplers) > sampler.most:
                self._samplers.popitem(last=False)
            own = sampler.seeded(seed, room)([context])[0]
            return list(own.token_ids), list(own.log_probabilities), self._step

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **rest: Any
    ) -> Any:
        """Samples at temperature 1, as all of the training does."""
        room = int(sampling_params["max_tokens"])
        tokens, numbers, step = await asyncio.to_thread(self._draw, request_id, list(prompt_ids), room)
        return replica.TokenOutput(
            token_ids=tokens, log_probs=numbers, stop_reason="completed", extra_fields={"global_steps": step}
        )

    async def wake_up(self) -> None: ...

    async def sleep(self) -> None: ...

    async def abort_all_requests(self, reject_request: bool = False) -> None: ...

    async def resume_generation(self) -> None: ...

    async def clear_kv_cache(self) -> None: ...


def server_name(rank: int | str) -> str:
    """Returns the name of the Ray actor for the trainer's worker of this rank."""
    return f"cuda_agent_server_{rank}"


class Replica(replica.RolloutReplica):  # type: ignore[misc]
    """One server per worker."""

    async def launch_servers(self) -> None:
        """Starts the server. verl's trainer calls it."""
        options = {"name": server_name(self.replica_rank), "num_cpus": 0, "max_concurrency": 64}
        given = (self.model_config.path, self.config.dtype, self.config.max_model_len)
        actor: Any = ray.remote(Server).options(**options).remote(*given)
        self.servers = [actor]
        self._server_handle = actor
        self._server_address = f"transformers://{self.replica_rank}"


class Adapter(base.BaseRollout):  # type: ignore[misc]
    """The trainer's side, which sends its weights after every step."""

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None, **rest: Any
    ) -> None:
        """Copies every tensor to the CPU and sends them together."""
        found = {name: tensor.detach().to("cpu", torch.float32).clone() for name, tensor in weights}
        await ray.get_actor(server_name(os.environ["RANK"])).load.remote(found, global_steps)


def register() -> None:
    """Registers `actor_rollout_ref.rollout.name=transformers` with verl."""
    replica.RolloutReplicaRegistry.register("transformers", lambda: Replica)
    base._ROLLOUT_REGISTRY[("transformers", "async")] = "cuda_agent.training.ray.replica.Adapter"


# At import, because verl reads its registry in every process and may import this module itself.
register()
