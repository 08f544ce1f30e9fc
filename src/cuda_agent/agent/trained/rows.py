"""The key-value cache of a sampler: one row per context, with the key and value of a context's token n in slot n.

Rows have lengths of their own, so a context that grew by a turn needs only the new tokens. Slots beyond a row's length
hold anything; they are written before they are read. The last slot is never a token's: padding is written there.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_agent.core.errors import UsageError

#: name of `attend` among transformers' attention functions.
_ATTENTION = "cuda_agent_rows"
#: the capacity is a multiple of this.
_BLOCK = 64
_GROWTH = 1.5
#: the share of a device's memory that a cache may take.
_SHARE = 0.25


class RowCache:
    """A cache for models of transformers. `tokens` are those that each row holds."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.tokens: list[list[int]] = []
        self.capacity = 0
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._part, self._positions, self._attended = slice(None), torch.zeros(0), 0

    @property
    def spare(self) -> int:
        """The slot for what isn't kept."""
        return self.capacity - 1

    def place(self, contexts: Sequence[Sequence[int]]) -> list[int]:
        """Returns a row for each context: the one that holds its beginning, or an emptied one. There are as many rows
        as contexts, or up to twice as many, so that a few ended episodes don't change the tensors' shapes."""
        free = list(range(len(self.tokens)))
        found: list[int | None] = []
        for context in contexts:
            begun = (row for row in free if self.tokens[row] and self._continues(row, context))
            found.append(next(begun, None))
            if found[-1] is not None:
                free.remove(found[-1])
        if not len(contexts) <= len(self.tokens) < 2 * len(contexts):
            kept = [row for row in found if row is not None]
            self._resize(kept, len(contexts))
            found = [None if row is None else kept.index(row) for row in found]
            free = list(range(len(kept), len(contexts)))
        rows = [free.pop(0) if row is None else row for row in found]
        for row, known, context in zip(rows, found, contexts, strict=True):
            # The last token is read in the first decoding step, whose result is needed.
            self.tokens[row] = [] if known is None else self.tokens[row][: len(context) - 1]
        return rows

    def reserve(self, length: int) -> bool:
        """Makes room for contexts of this length and the spare slot. Returns whether the tensors were replaced."""
        if length < self.capacity:
            return False
        wanted = max(length + 1, int(self.capacity * _GROWTH))
        self.capacity = -(-wanted // _BLOCK) * _BLOCK
        for number, (keys, values) in enumerate(self._layers):
            self._layers[number] = self._longer(keys), self._longer(values)
        return bool(self._layers)

    def aim(self, part: slice, positions: Tensor, attended: int) -> Tensor:
        """Sets where the next forward pass writes: rows `part`, slots `positions` (rows, tokens). It reads at least the
        first `attended` slots. Returns which of those that it reads each token may see, (rows, 1, tokens, slots)."""
        self._part, self._positions = part, positions
        # Kernels want aligned masks.
        self._attended = min(self.capacity, -(-attended // _BLOCK) * _BLOCK)
        slots = torch.arange(self._attended, device=self._device)
        return (slots <= positions[:, :, None])[:, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *rest: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Writes keys and values (rows, heads, tokens, width) of a layer, and returns those to attend to."""
        if layer == len(self._layers):
            self._layers.append((self._empty(keys), self._empty(values)))
        found = []
        for stored, new in zip(self._layers[layer], (keys, values), strict=True):
            part = stored[self._part]
            part.scatter_(2, self._positions[:, None, :, None].expand_as(new), new)
            found.append(part[:, :, : self._attended])
        return found[0], found[1]

    def get_seq_length(self, layer: int = 0) -> int:
        """Transformers asks for it where no positions are given; they always are."""
        return 0

    def _continues(self, row: int, context: Sequence[int]) -> bool:
        held = self.tokens[row]
        return len(held) <= len(context) and held == list(context[: len(held)])

    def _resize(self, kept: Sequence[int], count: int) -> None:
        index = torch.tensor(kept, dtype=torch.long, device=self._device)
        for number, pair in enumerate(self._layers):
            found = []
            for old in pair:
                new = old.new_zeros((count, *old.shape[1:]))
                new[: len(kept)] = old[index]
                found.append(new)
            self._layers[number] = found[0], found[1]
        self.tokens = [self.tokens[row] for row in kept] + [[] for _ in range(count - len(kept))]

    def _empty(self, like: Tensor) -> Tensor:
        _, heads, _, width = like.shape
        return like.new_zeros((len(self.tokens), heads, self.capacity, width))

    def _longer(self, old: Tensor) -> Tensor:
        new = old.new_zeros((*old.shape[:2], self.capacity, old.shape[3]))
        new[:, :, : old.shape[2]] = old
        return new


def token_bytes(config: Any, itemsize: int) -> int:
    """Returns the bytes of one token's keys and values in all layers of a model."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * shared * width * itemsize)


def most_rows(config: Any, itemsize: int, context_tokens: int, device: torch.device) -> int:
    """Returns how many contexts fit into the cache's share of the device's whole memory, at least one. So the limit is
    the same on equal machines, whatever else runs."""
    if device.type == "cuda":
        memory = int(torch.cuda.get_device_properties(device).total_memory)
    else:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, int(_SHARE * memory / (_GROWTH * context_tokens * token_bytes(config, itemsize))))


def use_rows(model: Any) -> None:
    """Makes `attend` the attention of a model. Calls without a cache find what they did before."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(_ATTENTION, attend)
    AttentionMaskInterface.register(_ATTENTION, sdpa_mask)
    model.set_attn_implementation(_ATTENTION)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None = None,
    **named: Any,
) -> Any:
    """Attention of (rows, heads, tokens, width) to (rows, fewer heads, slots, width). In decoding, the heads of a group
    become tokens of one head, so keys and values aren't copied for each head. Raises UsageError for what it can't
    compute."""
    if named.get("softcap") is not None or named.get("s_aux") is not None:
        raise UsageError("The sampler can't run attention with a soft cap or sinks", "Sample with launcher: ray")
    if mask is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, None, scaling=scaling, **named)
    rows, heads, length, width = query.shape
    groups = heads // key.shape[1]
    if length == 1:
        query = query.reshape(rows, key.shape[1], groups, width)
    elif groups > 1:
        key, value = (one.repeat_interleave(groups, dim=1) for one in (key, value))
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return found.reshape(rows, heads, length, -1).transpose(1, 2).contiguous(), None


def masks_of(config: Any) -> Any:
    """Returns how a model's layers see slots: a function of (seen, positions) -> the mask that its forward pass
    takes. Raises UsageError for other kinds of layers."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or (["sliding_attention"] if window else ["full_attention"]))
    if not kinds <= {"full_attention", "sliding_attention"}:
        named = ", ".join(sorted(kinds))
        raise UsageError(f"The sampler can't run layers of {named}", "Sample with launcher: ray")
    if kinds == {"full_attention"}:
        return lambda seen, positions: seen

    def sliding(seen: Tensor, positions: Tensor) -> Any:
        slots = torch.arange(seen.shape[-1], device=seen.device)
        near = seen & (slots > positions[:, None, :, None] - window)
        return near if len(kinds) == 1 else {"full_attention": seen, "sliding_attention": near}

    return sliding
