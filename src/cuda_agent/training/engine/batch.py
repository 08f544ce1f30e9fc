"""Converts episodes to verl's batches and back. Tensors are jagged: one row per episode, with its own length."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_agent.training.episodes import Episode


def jagged(rows: Sequence[Tensor]) -> Tensor:
    """Returns rows of any lengths as one nested tensor."""
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def response_masks(episodes: Sequence[Episode]) -> list[Tensor]:
    """Returns masks of shape (response tokens,): 1 for an own token, 0 for an observation."""
    return [torch.tensor(episode.mask) for episode in episodes]


def batch(episodes: Sequence[Episode], *, settings: dict[str, Any], **columns: Tensor) -> Any:
    """Returns a TensorDict of episodes. `columns` are further jagged tensors over the response tokens. `settings` are
    verl's options besides tensors."""
    from verl.utils import tensordict_utils

    prompts = [torch.tensor(episode.prompt_ids) for episode in episodes]
    responses = [torch.tensor(episode.response_ids) for episode in episodes]
    masks = jagged(response_masks(episodes))
    whole = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    tensors = {
        "input_ids": jagged(whole),
        "position_ids": jagged([torch.arange(len(row)) for row in whole]),
        "prompts": jagged(prompts),
        "responses": jagged(responses),
        "response_mask": masks,
        "loss_mask": masks,
        **columns,
    }
    beside = {"temperature": 1.0, "pad_token_id": 0, **settings}
    return tensordict_utils.get_tensordict(tensors, non_tensor_dict=beside)


def whole_masks(episodes: Sequence[Episode]) -> Tensor:
    """Returns the mask over all tokens for the fine-tuning loss; 0 for the prompt."""
    return jagged([torch.tensor([0] * len(episode.prompt_ids) + list(episode.mask)) for episode in episodes])


def rows_of(nested: Tensor) -> list[Tensor]:
    return [row.detach().float().cpu() for row in nested.unbind()]
