"""The actor that holds a share of a model. Importing this module imports verl."""

from pathlib import Path
from typing import Any

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import TrainingWorker

from cuda_agent.training.engine.worker import Save, Trained, check_adapters


class ModelWorker(TrainingWorker):  # type: ignore[misc]
    """verl's worker with its model and loss, from the start."""

    def __init__(self, config: Any, loss: Any, trained: Trained) -> None:
        # The first actor makes a critic's new head.
        torch.manual_seed(trained.seed)
        super().__init__(config)
        self.engine.initialize()
        self.loss_fn = loss
        if trained.model.lora_rank:
            check_adapters(self.engine.module, trained.path)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def save_model(self, save: Save, like: str, directory: Path) -> None:
        """The first actor saves the model. Every actor takes part in gathering each tensor."""
        weights = self.engine.get_per_tensor_param()[0]
        if self.rank == 0:
            save(weights, like, directory)
        else:
            for _ in weights:
                pass

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def held(self) -> int:
        """Returns the number of weights in this process."""
        weights = (getattr(one, "to_local", lambda one=one: one)() for one in self.engine.module.parameters())
        return sum(one.numel() for one in weights)
