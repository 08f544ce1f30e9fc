"""Saves models: an actor in bfloat16 and small shards that transformers can load, a critic in float32."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuda_agent.core.errors import StoreError

#: size of a shard; a larger tensor has its own.
SHARD = "16MB"
_OWN = ("config.json", "generation_config.json", "model")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")


def save_policy(weights: Iterable[tuple[str, Tensor]], like: str, directory: Path, beside: str | None = None) -> Path:
    """Saves the policy at `like`, with these weights in place of its own, in our format: bfloat16, small shards. The
    files besides weights come from `beside`, or from `like`. Raises StoreError."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(like, dtype=torch.bfloat16)
    take_weights(model, weights)
    return _save(model, beside or like, directory)


def save_critic(weights: Iterable[tuple[str, Tensor]], like: str, directory: Path) -> Path:
    """Saves the critic as a model with one number per token. Raises StoreError."""
    from transformers import AutoModelForTokenClassification

    model: Any = AutoModelForTokenClassification.from_pretrained(like, dtype=torch.float32, num_labels=1)
    take_weights(model, weights)
    return _save(model, like, directory)


def replace_folder(temporary: Path, directory: Path) -> Path:
    """Replaces `directory` by `temporary`, once the new files are on the disk."""
    try:
        for path in temporary.rglob("*"):
            if path.is_file():
                with open(path, "rb") as stream:
                    os.fsync(stream.fileno())
        if directory.exists():
            shutil.rmtree(directory)
        os.replace(temporary, directory)
    except OSError as error:
        raise StoreError(f"Can't write {directory}: {error.strerror}", "Free some space") from None
    return directory


def fresh_folder(directory: Path) -> Path:
    """Makes an empty folder beside `directory`, to replace it later."""
    temporary = directory.with_name(f".{directory.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    return temporary


def take_weights(model: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copies tensors over those of the same name, one at a time, in the model's precision. No tensors leave the model
    as it is. Raises StoreError for a name that the model doesn't have, such as that of an adapter that wasn't merged,
    and if some of its own are missing: it would stay at its old weights in part."""
    own = model.state_dict()
    left = {tensor.data_ptr() for tensor in own.values()}
    given = False
    with torch.no_grad():
        for name, tensor in weights:
            if name not in own:
                raise StoreError(f"The model has no weight {name}", "Merge adapters before the weights are taken")
            own[name].copy_(tensor)
            # Tied weights have several names.
            left.discard(own[name].data_ptr())
            given = True
    if given and left:
        names = ", ".join([name for name, tensor in own.items() if tensor.data_ptr() in left][:3])
        raise StoreError(f"The weights lack {names}", "Give all weights of the model")


def _save(model: Any, like: str, directory: Path) -> Path:
    temporary = fresh_folder(directory)
    try:
        model.save_pretrained(temporary, max_shard_size=SHARD)
        for path in Path(like).iterdir():
            # the tokenizer and the dialogue's settings, byte for byte.
            if path.is_file() and not path.name.startswith(_OWN) and path.suffix not in _WEIGHTS:
                shutil.copyfile(path, temporary / path.name)
    except (OSError, RuntimeError) as error:
        raise StoreError(f"Can't write {directory}: {error}", "Free some space") from None
    return replace_folder(temporary, directory)
