"""Opens the folder of a trained checkpoint."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cuda_agent.agent.trained.chat import ChatDialogue
from cuda_agent.agent.trained.dialogue import Dialogue, DialogueSettings
from cuda_agent.agent.trained.pocket import PocketDialogue
from cuda_agent.agent.trained.sampler import Sampler
from cuda_agent.core.errors import UsageError


def check_checkpoint(checkpoint: Path) -> None:
    """Raises UsageError if the folder holds no checkpoint of a policy."""
    for name in (DialogueSettings.file_name, "config.json", "tokenizer.json"):
        if not (checkpoint / name).is_file():
            raise UsageError(
                f"{checkpoint} is no trained policy: it has no {name}", "Give a folder that training wrote"
            )


def load_dialogue(checkpoint: Path) -> tuple[DialogueSettings, Dialogue]:
    """Returns the settings and the dialogue of a checkpoint. Raises UsageError if the folder holds none or transformers
    is missing, StoreError if it can't be read."""
    check_checkpoint(checkpoint)
    if find_spec("transformers") is None:
        raise UsageError("A trained policy needs the package transformers", "Run: pip install 'cuda-agent[tasks]'")
    settings = DialogueSettings.read(checkpoint)
    if settings.kind == "pocket":
        return settings, PocketDialogue.load(checkpoint)
    return settings, ChatDialogue.load(checkpoint)


def make_sampler(model: Any, dialogue: Dialogue, settings: DialogueSettings, seed: int) -> Sampler:
    return Sampler(
        model, stop_id=dialogue.stop_id, pad_id=dialogue.pad_id, turn_tokens=settings.turn_tokens,
        context_tokens=settings.context_tokens, seed=seed,
    )  # fmt: skip
