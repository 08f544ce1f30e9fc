"""Opens the folder of a policy: one that training wrote, or a chat model."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cuda_agent.agent.trained.chat import ChatDialogue
from cuda_agent.agent.trained.dialogue import Dialogue, DialogueSettings
from cuda_agent.agent.trained.pocket import PocketDialogue
from cuda_agent.agent.trained.sampler import Sampler
from cuda_agent.core.errors import StoreError, UsageError

_CONFIG = "config.json"
#: a chat model without settings of its own: turns of an episode, its most tokens, and the part of them for one turn.
_TURNS, _CONTEXT, _TURN_PART = 150, 131_072, 8


def check_checkpoint(checkpoint: Path) -> None:
    """Raises UsageError if the folder holds no model with its tokenizer."""
    for name in (_CONFIG, "tokenizer.json"):
        if not (checkpoint / name).is_file():
            raise UsageError(
                f"{checkpoint} is no policy: it has no {name}", "Give a folder that training wrote, or a chat model's"
            )


def load_settings(checkpoint: Path) -> DialogueSettings:
    """Returns the settings of a policy. A folder without `dialogue.json` is a chat model's, which plays with tools and
    may use its whole context. Raises UsageError if the folder holds no policy, and StoreError if it can't be read."""
    check_checkpoint(checkpoint)
    settings = DialogueSettings.find(checkpoint)
    if settings is None:
        context = min(_CONTEXT, _reach(_config(checkpoint)))
        settings = DialogueSettings(
            kind="tools", turns=_TURNS, turn_tokens=max(4, context // _TURN_PART), context_tokens=context
        )
    return settings


def load_dialogue(checkpoint: Path, settings: DialogueSettings) -> Dialogue:
    """Returns the dialogue of a policy with these settings. Raises UsageError if the folder holds no policy, the
    settings don't fit its tokenizer or model, or transformers is missing, and StoreError if it can't be read."""
    check_checkpoint(checkpoint)
    if find_spec("transformers") is None:
        raise UsageError("A trained policy needs the package transformers", "Run: pip install 'cuda-agent[tasks]'")
    dialogue: Dialogue
    if settings.kind == "pocket":
        dialogue = PocketDialogue.load(checkpoint)
    else:
        dialogue = ChatDialogue.load(checkpoint, settings.kind, settings.examples)
    rows = _config(checkpoint).get("vocab_size", dialogue.vocabulary)
    if dialogue.vocabulary > rows:
        raise UsageError(
            f"The tokenizer of {checkpoint} has {dialogue.vocabulary} tokens and its model {rows}",
            "Give the tokenizer that belongs to the model",
        )
    reach = _reach(_config(checkpoint))
    if settings.context_tokens > reach:
        raise UsageError(
            f"Episodes have up to {settings.context_tokens} tokens and {checkpoint} reads {reach}",
            "Lower context_tokens in dialogue.json or in the stage's limits, or set the model's rope scaling",
        )
    return dialogue


def make_sampler(model: Any, dialogue: Dialogue, settings: DialogueSettings, seed: int) -> Sampler:
    return Sampler(
        model, stop_id=dialogue.stop_id, pad_id=dialogue.pad_id, turn_tokens=settings.turn_tokens,
        context_tokens=settings.context_tokens, seed=seed,
    )  # fmt: skip


def _config(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / _CONFIG
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"Can't read {path}: {error}", "Give a whole checkpoint") from None
    text: dict[str, Any] = found.get("text_config") or found
    return text


def _reach(config: dict[str, Any]) -> int:
    """Returns how many tokens a model can read, longer where its rope is scaled; the greatest number if it doesn't
    say."""
    trained = int(config.get("max_position_embeddings") or 1 << 30)
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    scaled = float(rope.get("factor") or 1) * int(rope.get("original_max_position_embeddings") or trained)
    return max(trained, int(scaled))
