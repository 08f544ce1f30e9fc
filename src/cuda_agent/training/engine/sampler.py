"""The policy as it samples: a copy of the actor in transformers, with a key-value cache, batched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_agent.training.config import ModelOptions
from cuda_agent.training.engine import platform
from cuda_agent.training.episodes import Generated


class Sampler:
    """Draws own tokens at temperature 1 until a stop token, the turn's limit or the context's end."""

    def __init__(self, path: str, options: ModelOptions, *, device: str, seed: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=platform.precision(options.sample_precision), attn_implementation=options.attention
        )
        self._model = model.to(device).eval()
        self._options = options
        self._device = device
        self._stops = stop_tokens(self._model, AutoTokenizer.from_pretrained(path))
        self._random = torch.Generator(device=device)
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """What is drawn next follows from the seed alone."""
        self._random.manual_seed(seed)

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take the actor's weights over, one tensor at a time."""
        own = dict(self._model.named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for name, tensor in weights:
                if name in own:
                    own[name].copy_(tensor)

    @torch.no_grad()
    def __call__(self, contexts: Sequence[Sequence[int]]) -> list[Generated]:
        """One continuation a context. A context that is full already gives an empty one, cut."""
        rooms = [min(self._options.turn_tokens, self._options.context_tokens - len(context)) for context in contexts]
        open_rows = [row for row, room in enumerate(rooms) if room > 0]
        found: dict[int, Generated] = {}
        if open_rows:
            drawn = self._draw([contexts[row] for row in open_rows], [rooms[row] for row in open_rows])
            found = dict(zip(open_rows, drawn, strict=True))
        return [found.get(row, Generated((), (), cut=True)) for row in range(len(contexts))]

    def _draw(self, contexts: list[Sequence[int]], rooms: list[int]) -> list[Generated]:
        """Contexts are padded on the left, so that their ends meet; a row that has ended draws on unheard."""
        longest = max(map(len, contexts))
        ids = torch.zeros(len(contexts), longest, dtype=torch.long)
        seen = torch.zeros_like(ids)
        for row, context in enumerate(contexts):
            ids[row, longest - len(context) :] = torch.tensor(list(context))
            seen[row, longest - len(context) :] = 1
        ids, seen = ids.to(self._device), seen.to(self._device)
        positions = (seen.cumsum(1) - 1).clamp(min=0)
        room = torch.tensor(rooms, device=self._device)
        stops = torch.tensor(sorted(self._stops), device=self._device)
        ended = torch.zeros(len(contexts), dtype=torch.bool, device=self._device)
        tokens, numbers, cache = [], [], None
        for count in range(1, max(rooms) + 1):
            out = self._model(
                input_ids=ids, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True,
                logits_to_keep=1,
            )  # fmt: skip
            cache = out.past_key_values
            log_probabilities = out.logits[:, -1].float().log_softmax(-1)
            ids = torch.multinomial(log_probabilities.exp(), 1, generator=self._random)
            tokens.append(ids)
            numbers.append(log_probabilities.gather(1, ids))
            ended |= torch.isin(ids[:, 0], stops) | (room <= count)
            # Asking the device costs a wait, so not for every token.
            if count % 8 == 0 and bool(ended.all()):
                break
            seen = torch.cat([seen, torch.ones_like(ids)], 1)
            positions = positions[:, -1:] + 1
        return self._cut(torch.cat(tokens, 1).tolist(), torch.cat(numbers, 1).tolist(), rooms)

    def _cut(self, tokens: list[list[int]], numbers: list[list[float]], rooms: list[int]) -> list[Generated]:
        found = []
        for own, log_probabilities, room in zip(tokens, numbers, rooms, strict=True):
            end = next((place + 1 for place, token in enumerate(own[:room]) if token in self._stops), None)
            length = min(room, len(own)) if end is None else end
            found.append(Generated(tuple(own[:length]), tuple(log_probabilities[:length]), cut=end is None))
        return found


def stop_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a turn: the model's own, else the tokenizer's."""
    said = model.generation_config.eos_token_id
    ids = said if isinstance(said, list) else [said]
    return frozenset(one for one in (*ids, tokenizer.eos_token_id) if one is not None)
