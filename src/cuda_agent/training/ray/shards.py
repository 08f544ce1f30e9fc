"""The models of a stage in Ray actors. Each holds a share of the weights, of the optimiser's state and of a batch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cuda_agent.training.engine.worker import MakeWorker, Save, Trained, here
from cuda_agent.training.ray.overrides import cluster_settings, process_environment, sharded_overrides
from cuda_agent.training.stages.stage import TrainingStage


@contextmanager
def workers(stage: TrainingStage) -> Iterator[MakeWorker]:
    """Yields what makes the workers of a stage's models: in this process, or in actors that end with the block."""
    if stage.options.launcher != "ray":
        yield here
        return
    import ray

    def make(trained: Trained) -> Shards:
        shards = Shards(stage, trained)
        held = shards.held()
        stage.progress(stage.name, f"{len(held)} actors hold {', '.join(f'{one:,}' for one in held)} weights")
        return shards

    environment = process_environment(stage.device)
    # Ray's own processes read some of them, too.
    os.environ.update({name: value for name, value in environment.items() if name.startswith("RAY_")})
    cluster = cluster_settings(stage.options.ray, stage.device)
    ray.init(**cluster, runtime_env={"env_vars": environment}, log_to_driver=False)
    try:
        yield make
    finally:
        ray.shutdown()


class Shards:
    """Stands for verl's worker: its calls reach every actor, with the actor's share of the rows."""

    def __init__(self, stage: TrainingStage, trained: Trained) -> None:
        import ray
        from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

        from cuda_agent.training.engine import plugin
        from cuda_agent.training.ray.model import ModelWorker

        plugin.install()
        options = stage.options
        overrides = sharded_overrides(options, trained.stage, trained.path, trained.path)
        config, loss = trained.configured(overrides)
        # verl's pool asks for so many cores per actor.
        pool = RayResourcePool([options.ray.gpus_per_node] * options.ray.nodes, max_colocate_count=1)
        made = RayClassWithInitArgs(ray.remote(ModelWorker), config=config, loss=loss, trained=trained)
        self._group: Any = RayWorkerGroup(pool, made, device_name=stage.device)
        self.shares = max(self._group._query_dispatch_info("train")) + 1

    def infer_batch(self, data: Any) -> Any:
        return self._group.infer_batch(data).get()

    def train_mini_batch(self, data: Any) -> Any:
        return self._group.train_mini_batch(data).get()

    def save_model(self, save: Save, like: str, directory: Path) -> None:
        self._group.save_model(save, like, directory)

    def held(self) -> list[int]:
        """Returns how many weights each actor holds."""
        found: list[int] = self._group.held()
        return found
