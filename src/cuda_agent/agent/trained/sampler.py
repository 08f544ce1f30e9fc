"""Samples from a causal language model of `transformers`: many contexts at once, with a key-value cache that is kept
over the turns of their episodes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from cuda_agent.agent.trained.dialogue import DialogueSettings
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import StoreError

#: most tokens of a forward pass that reads contexts.
_PREFILL = 8192


@dataclass(frozen=True)
class Sampled:
    """Sampled tokens with their log-probabilities at temperature 1. `cut`: the room ended before a stop token."""

    token_ids: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    cut: bool = False


class Sampler:
    """Continues contexts. The key-value cache is kept: a context that begins with an earlier one and what was added to
    it is only continued. The same seed and the same calls give the same tokens."""

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
        most_at_once: int | None = None,
    ) -> None:
        """`model` is a causal language model of transformers in evaluation mode, whose attention becomes
        `rows.attend`. A temperature of 0 takes the most likely token. Contexts beyond `most_at_once` come in turns and
        share one cache; without it, as many as the device's memory allows. Raises UsageError for a model that the cache
        can't serve."""
        import torch

        from cuda_agent.agent.trained import rows

        rows.use_rows(model)
        self._model, self._stop, self._pad = model, stop_id, pad_id
        self._turn, self._context, self._temperature = turn_tokens, context_tokens, temperature
        weight = next(model.parameters())
        self._device = weight.device
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        config = model.config.get_text_config(decoder=True)
        self.most = most_at_once or rows.most_rows(config, weight.element_size(), context_tokens, self._device)
        self._masks = rows.masks_of(config)
        self._rows = rows.RowCache(self._device)
        self._captured: _Captured | None = None

    def seeded(self, seed: int, turn_tokens: int | None = None) -> Self:
        """Returns this sampler. Its next draws follow from the seed, and a turn may have another limit."""
        self._generator.manual_seed(seed)
        self._turn = turn_tokens or self._turn
        return self

    def __call__(self, contexts: Sequence[Sequence[int]]) -> list[Sampled]:
        """Returns one continuation for each context, in order. The device is idle afterwards."""
        import torch

        found: list[Sampled] = []
        with torch.no_grad():
            for start in range(0, len(contexts), self.most):
                found += self._batch(contexts[start : start + self.most])
        return found

    def _batch(self, contexts: Sequence[Sequence[int]]) -> list[Sampled]:
        count = len(self._rows.tokens)
        rows = self._rows.place(contexts)
        if self._rows.reserve(max(map(len, contexts))) or count != len(self._rows.tokens):
            self._captured = None
        self._prefill(dict(zip(rows, contexts, strict=True)))
        room = [min(self._turn, self._context - len(context)) for context in contexts]
        drawn, logs = self._decode(rows, contexts, room)
        found = [self._ended(drawn[row], logs[row], space) for row, space in zip(rows, room, strict=True)]
        for row, context, sampled in zip(rows, contexts, found, strict=True):
            # The last token was drawn and not read.
            self._rows.tokens[row] = [*context, *sampled.token_ids][:-1]
        return found

    def _prefill(self, contexts: dict[int, Sequence[int]]) -> None:
        """Reads the contexts of these rows up to the last token, a few rows and tokens at a time."""
        held = self._rows.tokens
        new = [list(contexts[row][len(held[row]) : -1]) if row in contexts else [] for row in range(len(held))]
        start = 0
        while start < len(new):
            end, longest = start + 1, len(new[start])
            while end < len(new) and (end + 1 - start) * max(longest, len(new[end])) <= _PREFILL:
                longest = max(longest, len(new[end]))
                end += 1
            chunk = _PREFILL // (end - start)
            for begin in range(0, longest, chunk):
                self._read(slice(start, end), [tokens[begin : begin + chunk] for tokens in new[start:end]], begin)
            start = end

    def _read(self, part: slice, new: Sequence[Sequence[int]], begin: int) -> None:
        """Reads `new` tokens of the rows `part`, which hold their tokens and `begin` more."""
        import torch

        longest = max(map(len, new))
        starts = [len(tokens) + begin for tokens in self._rows.tokens[part]]
        ids = [[*tokens, *[self._pad] * (longest - len(tokens))] for tokens in new]
        places = [
            [*range(start, start + len(tokens)), *[self._rows.spare] * (longest - len(tokens))]
            for start, tokens in zip(starts, new, strict=True)
        ]
        attended = max(start + len(tokens) for start, tokens in zip(starts, new, strict=True) if tokens)
        as_tensor = partial(torch.tensor, device=self._device)
        self._forward(as_tensor(ids), as_tensor(places), part, attended)

    def _decode(
        self, rows: Sequence[int], contexts: Sequence[Sequence[int]], room: Sequence[int]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Draws until every row has stopped. Returns the tokens and their log-probabilities by row; those after a
        stop token have no meaning."""
        import torch

        count = len(self._rows.tokens)
        last, at, limit = [self._pad] * count, [self._rows.spare] * count, [0] * count
        for row, context, space in zip(rows, contexts, room, strict=True):
            if space > 0:
                last[row], at[row], limit[row] = context[-1], len(context) - 1, space
        token, position, limits = (torch.tensor(values, device=self._device) for values in (last, at, limit))
        live = limits > 0
        longest = max((len(c) + space for c, space in zip(contexts, room, strict=True) if space > 0), default=0)
        reach = max((len(context) for context, space in zip(contexts, room, strict=True) if space > 0), default=0)
        tokens, scores = [], []
        for step in range(max(limit)):
            reach = min(reach + (step > 0), longest)
            if self._rows.reserve(reach):
                self._captured = None
            token, score = self._draw(self._step(token, position, reach).float())
            tokens.append(token)
            scores.append(score)
            live = live & (token != self._stop) & (limits > step + 1)
            position = torch.where(live, position + 1, self._rows.spare)
            if step % self._look == 0 and not bool(live.any()):
                break
        if not tokens:
            return [[] for _ in range(count)], [[] for _ in range(count)]
        return torch.stack(tokens, 1).tolist(), torch.stack(scores, 1).tolist()

    @property
    def _look(self) -> int:
        """The number of steps between two looks whether any row goes on. A look waits for the device."""
        return 8 if self._device.type == "cuda" else 1

    def _step(self, token: Any, position: Any, reach: int) -> Any:
        """Reads one token of every row. Returns logits, (rows, vocabulary)."""
        everything = slice(None)
        if self._device.type != "cuda":
            return self._forward(token[:, None], position[:, None], everything, reach)
        if self._captured is None:
            capacity = self._rows.capacity
            self._captured = _Captured(lambda t, p: self._forward(t, p, everything, capacity), token, position)
        return self._captured(token, position)

    def _forward(self, ids: Any, positions: Any, part: slice, attended: int) -> Any:
        """Reads tokens (rows, tokens). Returns the logits of the last ones, (rows, vocabulary)."""
        mask = self._masks(self._rows.aim(part, positions, attended), positions)
        out = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=self._rows, use_cache=True,
            logits_to_keep=1,
        )  # fmt: skip
        return out.logits[:, -1]

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


class _Captured:
    """A decoding step as a CUDA graph, for fixed rows and a fixed capacity."""

    def __init__(self, forward: Callable[[Any, Any], Any], token: Any, position: Any) -> None:
        """Captures `forward` of tokens and positions, (rows, 1) each. The given values are those of the next step, so
        the runs before the capture write nothing wrong into the cache."""
        import torch

        self._token, self._position = token[:, None].clone(), position[:, None].clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                forward(self._token, self._position)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = forward(self._token, self._position)

    def __call__(self, token: Any, position: Any) -> Any:
        """Returns the logits, which the next call overwrites."""
        self._token.copy_(token[:, None])
        self._position.copy_(position[:, None])
        self._graph.replay()
        return self._logits


def torch_device(device: Device) -> str:
    """Returns the torch device of a policy's model."""
    return "cuda" if device is Device.CUDA else "cpu"


def load_model(checkpoint: Path, device: str, precision: str | None = None) -> Any:
    """Loads the causal language model of a checkpoint to sample from it. Its precision is bfloat16 on a GPU and float32
    on a CPU and for a pocket policy, unless another is given. Raises StoreError if the weights can't be read."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    settings = DialogueSettings.find(checkpoint)
    half = device == "cuda" and (settings is None or settings.kind != "pocket")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint,
            dtype=getattr(torch, precision or ("bfloat16" if half else "float32")),
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
