"""Actor and critic on verl's `TrainingWorker`, with verl's losses. It is in this process, or stands for several that
hold a share each (`ray/shards.py`)."""

import contextlib
import io
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from cuda_agent.core.errors import UsageError
from cuda_agent.training.config import ModelOptions, PpoOptions, RftOptions, ValueOptions
from cuda_agent.training.engine import platform
from cuda_agent.training.engine.batch import batch, mini_batches, rows_of, spread
from cuda_agent.training.engine.checkpoints import save_critic, save_policy
from cuda_agent.training.engine.compose import compose, embedded, mini_batch
from cuda_agent.training.episodes import Episode

#: save(weights, folder of a like model, directory) -> directory.
Save = Callable[[Iterable[tuple[str, Tensor]], str, Path], Path]


@dataclass(frozen=True)
class Trained:
    """A model to train: its kind in verl's words, its folder in transformers' format, the options of its stage."""

    kind: Literal["language_model", "value_model"]
    model: ModelOptions
    path: str
    stage: PpoOptions | RftOptions | ValueOptions
    loss: Callable[..., Any]
    seed: int

    def configured(self, overrides: Sequence[str]) -> tuple[Any, Any]:
        """Returns verl's configuration of its worker, composed from these overrides, and its loss."""
        from omegaconf import OmegaConf
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.engine_workers import TrainingWorkerConfig

        whole, critic = compose(overrides), self.kind == "value_model"
        config = omega_conf_to_dataclass(OmegaConf.select(whole, "critic" if critic else "actor_rollout_ref.actor"))
        engine = config.engine
        engine.use_dynamic_bsz = True
        engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = self.stage.micro_batch_tokens
        config.optim.total_training_steps = self.stage.steps if isinstance(self.stage, PpoOptions) else 1
        model = config.model if critic else omega_conf_to_dataclass(whole.actor_rollout_ref.model)
        config.model_config = model
        worker = TrainingWorkerConfig(
            model_type=self.kind,
            model_config=model,
            engine_config=engine,
            optimizer_config=config.optim,
            checkpoint_config=config.checkpoint,
        )
        return worker, partial(self.loss, config=config)


#: makes what trains a model, with the methods of `_Here`.
MakeWorker = Callable[[Trained], Any]


class _Here:
    """verl's worker in this process."""

    shares = 1

    def __init__(self, worker: Any) -> None:
        self.engine = worker.engine
        self.infer_batch, self.train_mini_batch = worker.infer_batch, worker.train_mini_batch
        self.save_checkpoint, self.load_checkpoint = worker.save_checkpoint, worker.load_checkpoint

    def save_model(self, save: Save, like: str, directory: Path) -> None:
        save(self.engine.get_per_tensor_param()[0], like, directory)


class _Engine:
    """The common part. The `columns` of an update have one row per episode over its response tokens."""

    _save: Save

    def __init__(self, worker: Any, stage: PpoOptions | RftOptions | ValueOptions, seed: int) -> None:
        self._worker = worker
        self._stage = stage
        self._seed = seed

    def _infer(self, episodes: Sequence[Episode], *outputs: str, **settings: Any) -> list[list[Tensor]]:
        """Returns rows over the response tokens for each output."""
        from verl.utils import tensordict_utils

        rows, order = spread(episodes, self._worker.shares)
        placed = [rows[place] for place in order]
        data = batch(placed, settings={"compute_loss": False, "global_batch_size": len(episodes), **settings})
        tensordict_utils.assign_non_tensor(data, use_dynamic_bsz=True)
        found = self._worker.infer_batch(data)
        cut = []
        for output in outputs:
            by_place = dict(zip(order, _responses(found[output], placed), strict=True))
            cut.append([by_place[place] for place in range(len(episodes))])
        return cut

    def _update(
        self, episodes: Sequence[Episode], epochs: int, seed: int, imitate: bool = False, **columns: Sequence[Tensor]
    ) -> dict[str, float]:
        """Makes an update for every mini-batch of every epoch."""
        metrics: dict[str, list[float]] = defaultdict(list)
        for epoch in range(epochs):
            at = (self._seed, seed, epoch)
            for chosen in mini_batches(range(len(episodes)), mini_batch(self._stage), at):
                part = {name: [rows[row] for row in chosen] for name, rows in columns.items()}
                for name, values in self._step([episodes[row] for row in chosen], imitate, part):
                    metrics[name] += values
        return {name: statistics.fmean(values) for name, values in metrics.items() if values}

    def _step(
        self, episodes: Sequence[Episode], imitate: bool, columns: dict[str, list[Tensor]]
    ) -> Iterator[tuple[str, list[float]]]:
        """Makes one update. Blank episodes fill the shares; they have no weight and aren't counted."""
        from verl.utils import tensordict_utils

        rows, order = spread(episodes, self._worker.shares)
        blanks = [torch.zeros(1)] * (len(rows) - len(episodes))
        placed = {name: [[*values, *blanks][place] for place in order] for name, values in columns.items()}
        settings = {
            "global_batch_size": len(episodes),
            "mini_batch_size": len(rows),
            "epochs": 1,
            "dataloader_kwargs": {"shuffle": False},
        }
        data = batch([rows[place] for place in order], settings=settings, imitate=imitate, **placed)
        for name, values in tensordict_utils.get(self._worker.train_mini_batch(data), "metrics").items():
            yield name, [float(one) for one in (values if isinstance(values, list) else [values]) if one is not None]

    def save(self, directory: Path) -> None:
        """Saves weights, optimiser, schedule and random state in verl's format."""
        with _quiet():
            self._worker.save_checkpoint(str(directory), None, 0)

    def load(self, directory: Path) -> None:
        with _quiet():
            self._worker.load_checkpoint(str(directory))

    def save_model(self, like: str, directory: Path) -> Path:
        """Saves the model in our format. The files besides weights come from `like`. Raises StoreError."""
        self._worker.save_model(type(self)._save, like, directory)
        return directory

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """Yields names and whole tensors, one by one. Only a worker of this process gives them."""
        found: Iterable[tuple[str, Tensor]] = self._worker.engine.get_per_tensor_param()[0]
        return found


class Actor(_Engine):
    """The policy in training."""

    _save = staticmethod(save_policy)

    def log_probabilities(self, episodes: Sequence[Episode]) -> list[Tensor]:
        """Returns the log-probability of every response token under the current weights; rows are (response
        tokens,)."""
        return self._infer(episodes, "log_probs")[0]

    def log_probabilities_and_entropy(self, episodes: Sequence[Episode]) -> tuple[list[Tensor], list[Tensor]]:
        """Returns log-probabilities and the entropy of each token's distribution, in nats."""
        logs, entropy = self._infer(episodes, "log_probs", "entropy", calculate_entropy=True)
        return logs, entropy

    def update(
        self, episodes: Sequence[Episode], old: Sequence[Tensor], advantages: Sequence[Tensor], *, step: int
    ) -> dict[str, float]:
        """Optimises the clipped objective over epochs and mini-batches."""
        stage = self._stage
        assert isinstance(stage, PpoOptions)
        return self._update(episodes, stage.epochs, step, old_log_probs=old, advantages=advantages)

    def imitate(self, episodes: Sequence[Episode], *, step: int) -> dict[str, float]:
        """Makes one update by the log-likelihood of the own tokens, with exactly these ids."""
        return self._update(episodes, 1, step, imitate=True)


class Critic(_Engine):
    """Estimates the value of every own token: the expected reward before the token."""

    _save = staticmethod(save_critic)

    def values(self, episodes: Sequence[Episode]) -> list[Tensor]:
        """Returns values; rows are (response tokens,)."""
        return self._infer(episodes, "values")[0]

    def update(
        self, episodes: Sequence[Episode], values: Sequence[Tensor], targets: Sequence[Tensor], *, step: int
    ) -> dict[str, float]:
        """Minimises half the mean squared error to the targets over own tokens."""
        epochs = self._stage.epochs if isinstance(self._stage, PpoOptions) else 1
        return self._update(episodes, epochs, step, values=values, returns=targets)


def open_actor(
    model: ModelOptions, path: str, stage: PpoOptions | RftOptions, *, seed: int, make: MakeWorker | None = None
) -> Actor:
    """Opens an actor. `path` is a folder in transformers' format. Without `make` it is in this process."""
    from verl.workers.utils.losses import ppo_loss, sft_loss

    loss = ppo_loss if isinstance(stage, PpoOptions) else sft_loss
    trained = Trained("language_model", model, path, stage, loss, seed)
    return Actor((make or here)(trained), stage, seed)


def open_critic(
    model: ModelOptions, path: str, stage: PpoOptions | ValueOptions, *, seed: int, make: MakeWorker | None = None
) -> Critic:
    """Opens a critic. `path` is the folder of a critic, or of an actor, whose value head is then new."""
    from verl.workers.utils.losses import value_loss

    trained = Trained("value_model", model, path, stage, value_loss, seed)
    return Critic((make or here)(trained), stage, seed)


def here(trained: Trained) -> Any:
    """Makes a worker in this process."""
    from verl.workers.engine_workers import TrainingWorker

    from cuda_agent.training.engine import plugin

    config, loss = trained.configured(embedded(trained.model, trained.path, trained.path, trained.stage))
    plugin.install()
    platform.join_alone()
    torch.manual_seed(trained.seed)
    with _quiet():
        worker = TrainingWorker(config=config)
        worker.reset()
        worker.set_loss_fn(loss)
    if trained.model.lora_rank:
        check_adapters(worker.engine.module, trained.path)
    return _Here(worker)


def check_adapters(module: Any, path: str) -> None:
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


def _responses(nested: Tensor, episodes: Sequence[Episode]) -> list[Tensor]:
    """Cuts rows over all tokens to the predictions for the response tokens."""
    pairs = zip(rows_of(nested), episodes, strict=True)
    return [row[len(episode.prompt_ids) - 1 : len(episode.input_ids) - 1] for row, episode in pairs]
