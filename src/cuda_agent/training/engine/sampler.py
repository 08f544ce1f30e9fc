"""A copy of the actor that samples, in transformers and its own precision."""

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from cuda_agent.agent.trained.sampler import Sampler, load_model
from cuda_agent.training.config import ModelOptions
from cuda_agent.training.engine.checkpoints import take_weights


class PolicyCopy:
    """Samples at temperature 1 from the weights that were loaded last."""

    def __init__(self, checkpoint: Path, options: ModelOptions, *, device: str) -> None:
        """Raises StoreError as `load_model` does."""
        from transformers import AutoTokenizer

        self._model = load_model(checkpoint, device, options.sample_precision)
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self._stop = int(tokenizer.eos_token_id)
        self._pad = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copies the actor's weights, one tensor at a time."""
        take_weights(self._model, weights)

    def generate(self, *, turn_tokens: int, context_tokens: int, seed: int) -> Sampler:
        """Returns a sampler. Its draws follow from weights, contexts and seed alone."""
        return Sampler(
            self._model,
            stop_id=self._stop,
            pad_id=self._pad,
            turn_tokens=turn_tokens,
            context_tokens=context_tokens,
            seed=seed,
        )
