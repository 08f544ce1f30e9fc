"""Counts the memory that a stage needs on each card, by part, before anything runs. The estimate of activations assumes
that a layer's own are computed anew in the backward pass where `model.gradient_checkpointing` says so."""

from pathlib import Path
from typing import Any

from cuda_agent.agent.trained.rows import token_bytes
from cuda_agent.core.errors import UsageError
from cuda_agent.core.record import Record
from cuda_agent.training.config import PpoOptions, RftOptions, SampleOptions, TrainingOptions, ValueOptions

_GB = 1e9
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: tensors of a layer's width and of its inner width that one layer keeps for its backward pass.
_OUTER, _INNER = 12, 3


class StageMemory(Record):
    """Bytes on one card. Training and sampling take turns, so the larger of the two counts."""

    stage: str
    weights: float = 0
    gradients: float = 0
    optimizer: float = 0
    activations: float = 0
    #: the copy that samples, and one episode's keys and values.
    sampler: float = 0
    cache: float = 0
    #: whether the sampler lies beside the models that train.
    beside: bool = True

    @property
    def total(self) -> float:
        states = self.weights + self.gradients + self.optimizer
        sampling = self.sampler + self.cache
        return states + max(self.activations, sampling) if self.beside else max(states + self.activations, sampling)

    def __str__(self) -> str:
        parts = ("weights", "gradients", "optimizer", "activations", "sampler", "cache")
        counts = ", ".join(f"{name} {getattr(self, name) / _GB:.1f}" for name in parts)
        return f"{self.stage}: {self.total / _GB:.1f} GB a card ({counts})"


def count(options: TrainingOptions) -> list[StageMemory]:
    """Returns what each stage needs, nothing where the model's sizes aren't known yet. Raises UsageError for a stage
    that can't fit on `card_gb`, in one line with its parts."""
    config = _config(options)
    if config is None:
        return []
    sizes = _Sizes(options, config)
    stages = [(name, getattr(options, name)) for name in ("warmup", "sample", "rft", "value", "ppo")]
    found = [sizes.stage(name, stage) for name, stage in stages if stage is not None]
    for stage in found:
        if options.card_gb is not None and stage.total > options.card_gb * _GB:
            raise UsageError(
                f"{stage}, and a card has {options.card_gb:g} GB",
                "Give more or larger cards (ray.gpus_per_node, card_gb), a smaller micro_batch_tokens, "
                "ray.offload or model.lora_rank",
            )
    return found


class _Sizes:
    """The sizes of actor and critic, which have no values here."""

    def __init__(self, options: TrainingOptions, config: Any) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

        self._options = options
        self._text = config.get_text_config(decoder=True)
        actor = _numbers(AutoModelForCausalLM, config, options.model.lora_rank)
        config.num_labels = 1
        critic = _numbers(AutoModelForTokenClassification, config, options.model.lora_rank)
        self._actor, self._critic = actor, critic

    def stage(self, name: str, stage: PpoOptions | SampleOptions | RftOptions | ValueOptions) -> StageMemory:
        options, ray = self._options, self._options.ray
        sharded = options.launcher == "ray"
        # Sampled trajectories come from one card with either launcher.
        cards = ray.nodes * ray.gpus_per_node if sharded and not isinstance(stage, SampleOptions) else 1
        found: dict[str, float] = {}
        if not isinstance(stage, SampleOptions):
            both = isinstance(stage, PpoOptions)
            held = [self._actor, self._critic] if both else [self._critic if name == "value" else self._actor]
            if both and sharded and ray.offload:
                # The other model waits in the host's memory.
                held = [max(held)]
            weights, trained = (sum(numbers) / cards for numbers in zip(*held, strict=True))
            found = {"weights": 4 * weights, "gradients": 4 * trained, "optimizer": 8 * trained}
            found["activations"] = self._activations(stage.micro_batch_tokens, name == "value")
        if isinstance(stage, PpoOptions | SampleOptions):
            split = ray.tensor_parallel if cards > 1 else 1
            width = _BYTES[options.model.sample_precision or "bfloat16"]
            context = stage.limits.context_tokens or options.model.context_tokens
            found["sampler"] = width * self._actor[0] / split
            found["cache"] = token_bytes(self._text, width) * context / split
        return StageMemory(stage=name, **found, beside=not (sharded and ray.offload))

    def _activations(self, tokens: int, critic: bool) -> float:
        """Returns the bytes of one micro batch, of which each card of a long sequence has a part: the inputs of all
        layers and what one layer keeps, or what all keep; and an actor's logits with their gradients."""
        text, model = self._text, self._options.model
        layer = _OUTER * text.hidden_size + _INNER * text.intermediate_size
        layers = text.num_hidden_layers
        kept = layers * text.hidden_size + layer if model.gradient_checkpointing else layers * layer
        logits = 0 if critic else 2 * text.vocab_size
        return float(tokens * _BYTES[model.train_precision] * (kept + logits))


def _config(options: TrainingOptions) -> Any:
    """Returns the configuration of the model, or one of `model.sizes` where its folder isn't there, or None."""
    from transformers import AutoConfig

    model = options.model
    if model.path is not None and (Path(model.path) / "config.json").is_file():
        return AutoConfig.from_pretrained(model.path, local_files_only=True)
    return None if model.sizes is None else AutoConfig.for_model(**model.sizes)


def _numbers(kind: Any, config: Any, rank: int) -> tuple[int, int]:
    """Returns the number of a model's weights, and of those that are trained: all, or adapters of every linear layer
    and a critic's head."""
    import torch

    with torch.device("meta"):
        model = kind.from_config(config)
    whole = sum(one.numel() for one in model.parameters())
    if not rank:
        return whole, whole
    linear = {name: one for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)}
    adapters = sum(rank * (one.in_features + one.out_features) for name, one in linear.items() if "layers." in name)
    heads = sum(one.weight.numel() for name, one in linear.items() if name.startswith("score"))
    return whole + adapters, adapters + heads
