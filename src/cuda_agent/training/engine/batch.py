"""Converts episodes to verl's batches and back. Tensors are jagged: one row per episode, with its own length."""

import random
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from cuda_agent.training.episodes import Episode

Item = TypeVar("Item")


def mini_batches(items: Sequence[Item], size: int, seed: Any) -> list[list[Item]]:
    """Returns mini-batches of all items in random order, of at most `size` and nearly equal lengths. So a few episodes
    that are left out make each a little smaller."""
    order = list(items)
    random.Random(str(seed)).shuffle(order)
    count = -(-len(order) // size)
    return [order[number::count] for number in range(count)]


def spread(episodes: Sequence[Episode], shares: int) -> tuple[list[Episode], list[int]]:
    """Returns the episodes and as many blank ones as make equal shares, and their order: one share after the other, all
    about equally long. A blank episode has no own token, so no loss counts it."""
    one = episodes[0]
    blank = one.model_copy(
        update={
            "prompt_ids": one.prompt_ids[:1],
            "response_ids": one.response_ids[:1],
            "mask": (0,),
            "log_probabilities": (0.0,),
        }
    )
    rows = [*episodes, *[blank] * (-len(episodes) % shares)]
    if shares == 1:
        return rows, list(range(len(rows)))
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

    parts = get_seqlen_balanced_partitions([len(row.input_ids) for row in rows], shares, equal_size=True)
    return rows, [row for part in parts for row in part]


def jagged(rows: Sequence[Tensor]) -> Tensor:
    """Returns rows of any lengths as one nested tensor."""
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def response_masks(episodes: Sequence[Episode]) -> list[Tensor]:
    """Returns masks of shape (response tokens,): 1 for an own token, 0 for an observation."""
    return [torch.tensor(episode.mask) for episode in episodes]


def batch(
    episodes: Sequence[Episode], *, settings: dict[str, Any], imitate: bool = False, **columns: Sequence[Tensor]
) -> Any:
    """Returns a TensorDict of episodes. `columns` are further rows over the response tokens. `settings` are verl's
    options besides tensors. The loss of fine-tuning (`imitate`) wants its mask over all tokens; 0 for the prompt."""
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
        "loss_mask": _whole_masks(episodes) if imitate else masks,
        **{name: jagged(rows) for name, rows in columns.items()},
    }
    beside = {"temperature": 1.0, "pad_token_id": 0, **settings}
    return tensordict_utils.get_tensordict(tensors, non_tensor_dict=beside)


def _whole_masks(episodes: Sequence[Episode]) -> Tensor:
    return jagged([torch.tensor([0] * len(episode.prompt_ids) + list(episode.mask)) for episode in episodes])


def rows_of(nested: Tensor) -> list[Tensor]:
    return [row.detach().float().cpu() for row in nested.unbind()]
