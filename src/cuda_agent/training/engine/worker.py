"""Actor and critic as verl's `TrainingWorker` in this process, with verl's losses."""

import contextlib
import io
import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuda_agent.core.errors import UsageError
from cuda_agent.training.config import ModelOptions, PpoOptions, RftOptions, ValueOptions
from cuda_agent.training.engine import platform
from cuda_agent.training.engine.batch import batch, jagged, rows_of, whole_masks
from cuda_agent.training.engine.compose import compose, embedded, mini_batch
from cuda_agent.training.episodes import Episode


class _Engine:
    """The common part. The `columns` of an update have one row per episode over its response tokens."""

    output = ""

    def __init__(self, worker: Any, stage: PpoOptions | RftOptions | ValueOptions, seed: int) -> None:
        self._worker = worker
        self._stage = stage
        self._seed = seed

    def _infer(self, episodes: Sequence[Episode], **settings: Any) -> Any:
        from verl.utils import tensordict_utils

        data = batch(episodes, settings={"compute_loss": False, "global_batch_size": len(episodes), **settings})
        tensordict_utils.assign_non_tensor(data, use_dynamic_bsz=True)
        return self._worker.infer_batch(data)

    def _responses(self, nested: Tensor, episodes: Sequence[Episode]) -> list[Tensor]:
        """Cuts rows over all tokens to the predictions for the response tokens."""
        pairs = zip(rows_of(nested), episodes, strict=True)
        return [row[len(episode.prompt_ids) - 1 : len(episode.input_ids) - 1] for row, episode in pairs]

    def _update(
        self, episodes: Sequence[Episode], epochs: int, seed: int, columns: dict[str, Tensor]
    ) -> dict[str, float]:
        size = min(mini_batch(self._stage), len(episodes))
        whole = len(episodes) - len(episodes) % size
        settings = {
            "global_batch_size": size,
            "mini_batch_size": size,
            "epochs": epochs,
            "seed": self._seed + seed,
            "dataloader_kwargs": {"shuffle": whole > size or epochs > 1},
        }
        from verl.utils import tensordict_utils

        columns = {name: _first(rows, whole) for name, rows in columns.items()}
        data = batch(episodes[:whole], settings=settings, **columns)
        return _means(tensordict_utils.get(self._worker.train_mini_batch(data), "metrics"))

    def save(self, directory: Path) -> None:
        """Saves weights, optimiser, schedule and random state in verl's format."""
        with _quiet():
            self._worker.save_checkpoint(str(directory), None, 0)

    def load(self, directory: Path) -> None:
        with _quiet():
            self._worker.load_checkpoint(str(directory))

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """Yields names and whole tensors, one by one."""
        found: Iterable[tuple[str, Tensor]] = self._worker.engine.get_per_tensor_param()[0]
        return found


class Actor(_Engine):
    """The policy in training."""

    def log_probabilities(self, episodes: Sequence[Episode]) -> list[Tensor]:
        """Returns the log-probability of every response token under the current weights; rows are (response
        tokens,)."""
        return self._responses(self._infer(episodes)["log_probs"], episodes)

    def log_probabilities_and_entropy(self, episodes: Sequence[Episode]) -> tuple[list[Tensor], list[Tensor]]:
        """Returns log-probabilities and the entropy of each token's distribution, in nats."""
        found = self._infer(episodes, calculate_entropy=True)
        return self._responses(found["log_probs"], episodes), self._responses(found["entropy"], episodes)

    def update(
        self, episodes: Sequence[Episode], old: Sequence[Tensor], advantages: Sequence[Tensor], *, step: int
    ) -> dict[str, float]:
        """Optimises the clipped objective over epochs and mini-batches."""
        stage = self._stage
        assert isinstance(stage, PpoOptions)
        columns = {"old_log_probs": jagged(old), "advantages": jagged(advantages)}
        return self._update(episodes, stage.epochs, step, columns)

    def imitate(self, episodes: Sequence[Episode], *, step: int) -> dict[str, float]:
        """Makes one update by the log-likelihood of the own tokens, with exactly these ids."""
        return self._update(episodes, 1, step, {"loss_mask": whole_masks(episodes)})


class Critic(_Engine):
    """Estimates the value of every own token: the expected reward before the token."""

    def values(self, episodes: Sequence[Episode]) -> list[Tensor]:
        """Returns values; rows are (response tokens,)."""
        return self._responses(self._infer(episodes)["values"], episodes)

    def update(
        self, episodes: Sequence[Episode], values: Sequence[Tensor], targets: Sequence[Tensor], *, step: int
    ) -> dict[str, float]:
        """Minimises half the mean squared error to the targets over own tokens."""
        epochs = self._stage.epochs if isinstance(self._stage, PpoOptions) else 1
        return self._update(episodes, epochs, step, {"values": jagged(values), "returns": jagged(targets)})


def open_actor(model: ModelOptions, path: str, stage: PpoOptions | RftOptions, *, seed: int) -> Actor:
    """Opens an actor. `path` is a folder in transformers' format."""
    from verl.workers.utils.losses import ppo_loss, sft_loss

    loss = ppo_loss if isinstance(stage, PpoOptions) else sft_loss
    return Actor(_worker("language_model", model, path, stage, "actor_rollout_ref.actor", loss), stage, seed)


def open_critic(model: ModelOptions, path: str, stage: PpoOptions | ValueOptions, *, seed: int) -> Critic:
    """Opens a critic. `path` is the folder of a critic, or of an actor, whose value head is then new."""
    from verl.workers.utils.losses import value_loss

    torch.manual_seed(seed)
    return Critic(_worker("value_model", model, path, stage, "critic", value_loss), stage, seed)


def _worker(kind: str, model: ModelOptions, path: str, stage: Any, key: str, loss: Any) -> Any:
    """Returns verl's worker with the part `key` of the composed configuration."""
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig

    from cuda_agent.training.engine import plugin

    whole = compose(embedded(model, path, path, stage))
    config = omega_conf_to_dataclass(OmegaConf.select(whole, key))
    if key != "critic":
        config.model_config = omega_conf_to_dataclass(whole.actor_rollout_ref.model)
    engine = config.engine
    engine.use_dynamic_bsz = True
    engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = stage.micro_batch_tokens
    config.optim.total_training_steps = stage.steps if isinstance(stage, PpoOptions) else 1
    plugin.install()
    platform.join_alone()
    with _quiet():
        worker = TrainingWorker(
            config=TrainingWorkerConfig(
                model_type=kind,
                model_config=config.model if key == "critic" else config.model_config,
                engine_config=engine,
                optimizer_config=config.optim,
                checkpoint_config=config.checkpoint,
            )
        )
        worker.reset()
        worker.set_loss_fn(partial(loss, config=config))
    if model.lora_rank:
        _check_adapters(worker.engine.module, path)
    return worker


def _check_adapters(module: Any, path: str) -> None:
    """Raises UsageError for adapters outside of the sharded layers, which verl doesn't merge: the sampler and the saved
    model would lack them."""
    from peft.tuners.lora import LoraLayer
    from torch.distributed.fsdp import FSDPModule

    layers = tuple(f"{name}." for name, one in module.named_modules() if name and isinstance(one, FSDPModule))
    adapted = (name for name, one in module.named_modules() if isinstance(one, LoraLayer))
    stray = [name for name in adapted if not name.startswith(layers)]
    if stray:
        named = ", ".join(stray[:3])
        raise UsageError(f"Adapters of {path} can't be merged outside of its layers: {named}", "Set model.lora_rank: 0")


def _quiet() -> contextlib.redirect_stdout[io.StringIO]:
    """Hides verl's prints: standard output belongs to the command."""
    return contextlib.redirect_stdout(io.StringIO())


def _first(rows: Tensor, count: int) -> Tensor:
    return rows if count == rows.size(0) else jagged(list(rows.unbind())[:count])


def _means(metrics: dict[str, Any]) -> dict[str, float]:
    """Returns means over updates, under verl's names."""
    found = {}
    for name, values in metrics.items():
        numbers = [float(value) for value in (values if isinstance(values, list) else [values]) if value is not None]
        if numbers:
            found[name] = statistics.fmean(numbers)
    return found
