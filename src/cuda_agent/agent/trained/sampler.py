"""Samples from a causal language model of `transformers`: many contexts at once, with a key-value cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import StoreError


@dataclass(frozen=True)
class Sampled:
    """Sampled tokens with their log-probabilities at temperature 1. `cut`: the room ended before a stop token."""

    token_ids: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    cut: bool = False


class Sampler:
    """Continues contexts. The same seed and the same contexts give the same tokens."""

    def __init__(
        self,
        model: Any,
        *,
        stop_id: int,
        pad_id: int,
        turn_tokens: int,
        context_tokens: int,
        seed: int = 0,
        temperature: float = 1.0,
        most_at_once: int = 256,
    ) -> None:
        """`model` is in evaluation mode and called as `model(input_ids=…, attention_mask=…, position_ids=…,
        past_key_values=…)`. A temperature of 0 takes the most likely token."""
        import torch

        self._model, self._stop, self._pad = model, stop_id, pad_id
        self._turn, self._context, self._temperature = turn_tokens, context_tokens, temperature
        self._most = most_at_once
        self._device = next(model.parameters()).device
        self._generator = torch.Generator(device=self._device).manual_seed(seed)

    def __call__(self, contexts: Sequence[Sequence[int]]) -> list[Sampled]:
        """Returns one continuation for each context, in order. The device is idle afterwards."""
        found: list[Sampled] = []
        for start in range(0, len(contexts), self._most):
            found += self._batch(contexts[start : start + self._most])
        return found

    def _batch(self, contexts: Sequence[Sequence[int]]) -> list[Sampled]:
        import torch

        device = self._device
        rows = [torch.tensor(context, dtype=torch.long) for context in contexts]
        padded = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True, padding_side="left")
        ids = padded(rows, padding_value=self._pad).to(device)
        mask = padded([torch.ones_like(row) for row in rows]).to(device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        room = [min(self._turn, self._context - len(context)) for context in contexts]
        live = torch.tensor([space > 0 for space in room], device=device)
        limits = torch.tensor(room, device=device)
        tokens, scores, cache = [], [], None
        with torch.no_grad():
            for step in range(max(0, *room)):
                out = self._model(
                    input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
                )
                cache = out.past_key_values
                token, score = self._draw(out.logits[:, -1].float())
                tokens.append(torch.where(live, token, self._pad))
                scores.append(score)
                live = live & (token != self._stop) & (limits > step + 1)
                if not bool(live.any()):
                    break
                ids, positions = tokens[-1][:, None], positions[:, -1:] + 1
                mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        if not tokens:
            return [Sampled((), (), True) for _ in contexts]
        drawn, logs = torch.stack(tokens, 1).tolist(), torch.stack(scores, 1).tolist()
        return [self._ended(row, log, space) for row, log, space in zip(drawn, logs, room, strict=True)]

    def _draw(self, logits: Any) -> tuple[Any, Any]:
        """Draws tokens from logits [rows, vocabulary]. Returns tokens and log-probabilities, [rows] each."""
        import torch

        logs = logits.log_softmax(-1)
        if self._temperature == 0:
            token = logs.argmax(-1)
        else:
            weights = (logits / self._temperature).softmax(-1)
            token = torch.multinomial(weights, 1, generator=self._generator)[:, 0]
        return token, logs.gather(-1, token[:, None])[:, 0]

    def _ended(self, tokens: list[int], logs: list[float], room: int) -> Sampled:
        end = tokens.index(self._stop) + 1 if self._stop in tokens else None
        count = min(room, len(tokens)) if end is None else min(end, room)
        return Sampled(tuple(tokens[:count]), tuple(logs[:count]), cut=end is None or end > room)


def torch_device(device: Device) -> str:
    """Returns the torch device of a policy's model."""
    return "cuda" if device is Device.CUDA else "cpu"


def load_model(checkpoint: Path, device: str) -> Any:
    """Loads the causal language model of a checkpoint in float32. Raises StoreError if the weights can't be read."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint,
            dtype=torch.float32,
            attn_implementation="sdpa",
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        first = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise StoreError(f"Can't load the policy at {checkpoint}: {first}", "Give a whole checkpoint") from None
    model, info = loaded
    if info.get("missing_keys"):
        named = ", ".join(sorted(info["missing_keys"])[:3])
        raise StoreError(f"The policy at {checkpoint} lacks weights: {named}", "Give a whole checkpoint")
    return model.to(device).eval()
