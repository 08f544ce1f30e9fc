"""The dialogue of the pocket preset: a prompt of operators, shapes and plans, real tool calls of about ten tokens, and
answers of a few words. Its tokenizer has a token for each fixed part of a call."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent.agent.dialogues.dialogue import ParsedTurn, parse_tagged
from cuda_agent.agent.policy import Brief
from cuda_agent.agent.trained.dialogue import Dialogue
from cuda_agent.agent.trained.offers import Offer, taking
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.graph import Graph, TensorMeta
from cuda_agent.core.records import ToolCall, ToolResult
from cuda_agent.llm import tagged
from cuda_agent.llm.chat import Message

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TASK, PLANS, ANSWER, AGENT, STOP, PAD = "<|task|>", "<|plans|>", "<|answer|>", "<|agent|>", "<|end|>", "<|pad|>"
SPECIAL = (PAD, STOP, TASK, PLANS, ANSWER, AGENT)
BINDING = "kernels/fused_binding.cpp"
BROKEN_OLD, BROKEN_NEW = "REGISTER_BINDING(fused, register_fused)", "REGISTER_BINDING(fused, register_fused"
_MOST_NODES = 24
_CONFIG = re.compile(r"CONFIG = \{(.*)\}")
_LETTER = re.compile(r'"([a-h])": (\d+)')


def call(name: str, **arguments: Any) -> str:
    """Returns a call as the policy writes it."""
    return tagged.write_call(name, arguments)


def take(number: int) -> str:
    return call("Bash", command=taking(number))


def read(path: str = "model_new.py") -> str:
    return call("Read", path=path)


def change(letter: str, old: int, new: int) -> str:
    return call("Edit", path="model_new.py", old=f'"{letter}": {old}', new=f'"{letter}": {new}')


def breaking(*, repair: bool = False) -> str:
    """Returns an edit that the compiler refuses, or the edit that reverts it."""
    old, new = (BROKEN_NEW + "\n", BROKEN_OLD + "\n") if repair else (BROKEN_OLD, BROKEN_NEW)
    return call("Edit", path=BINDING, old=old, new=new)


def finish() -> str:
    return call("Finish", message="done")


def fragments() -> list[str]:
    """Returns the texts that are one token each: the fixed parts of calls."""
    whole = [call(name) for name in ("Compile", "Verify", "Profile")]
    whole += [finish(), read(), read(BINDING), breaking(), breaking(repair=True)]
    # "@" stands for a letter and 7 for numbers; the fragments are the texts around them.
    return [*whole, *take(7).split("7"), *dict.fromkeys(re.split("[@7]", change("@", 7, 7)))]


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> "Tokenizer":
    """Trains a byte-level BPE on prompts and answers. Special tokens and fragments are tokens from the start."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL), initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in dict.fromkeys(fragments())])
    return tokenizer


class PocketTask:
    """The `TaskDialogue` of a small policy."""

    def __init__(self, brief: Brief, plans: Sequence[Offer]) -> None:
        self._brief, self._plans = brief, plans

    def messages(self) -> list[Message]:
        return [{"role": "user", "content": prompt_text(self._brief, self._plans)}]

    def parse(self, text: str, turn: int) -> ParsedTurn:
        return parse_tagged(text, turn)

    def observation(self, calls: Sequence[ToolCall], results: Sequence[ToolResult], turns_left: int) -> str:
        return answer_text(calls, results, turns_left)


class PocketDialogue(Dialogue):
    """The `Dialogue` of a small policy."""

    offers_plans = True

    def __init__(self, tokenizer: "Tokenizer") -> None:
        """Raises UsageError if the tokenizer isn't of a pocket policy."""
        self.tokenizer = tokenizer
        stop, pad = tokenizer.token_to_id(STOP), tokenizer.token_to_id(PAD)
        if stop is None or pad is None:
            raise UsageError(f"The tokenizer has no token {STOP} or {PAD}", 'Set "kind": "tools" in dialogue.json')
        self.stop_id: int = stop
        self.pad_id: int = pad

    @property
    def vocabulary(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    @classmethod
    def load(cls, checkpoint: Path) -> "PocketDialogue":
        """Raises StoreError if the tokenizer can't be read, and UsageError if it isn't of a pocket policy."""
        from tokenizers import Tokenizer

        path = checkpoint / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the package raises nothing narrower
            raise StoreError(f"Can't read {path}: {str(error)[:200]}", "Give a whole checkpoint") from None
        return cls(tokenizer)

    def about(self, brief: Brief, plans: Sequence[Offer]) -> "PocketTask":
        return PocketTask(brief, plans)

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        return self.encode("".join(message["content"] for message in messages) + AGENT)

    def encode_observation(self, text: str) -> list[int]:
        return self.encode(ANSWER + text + AGENT)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))


def prompt_text(brief: Brief, plans: Sequence[Offer]) -> str:
    """Returns the prompt: inputs, operators with their shapes, plans with their kernels."""
    lines = []
    for number, plan in enumerate(plans, 1):
        steps = [f"{s.kind} {s.tunable}:{plan.tunables[s.tunable]}" if s.tunable else s.kind for s in plan.steps]
        lines.append(f"{number} {plan.name} {' '.join(steps)}")
    head = f"{brief.device.value} {brief.precision.value}"
    end = f"\n{brief.limits.turns} left"
    return f"{TASK}{head}\n{_graph_text(brief.graph())}\n{PLANS}" + "\n".join(lines) + end


def answer_text(calls: Sequence[ToolCall], results: Sequence[ToolResult], turns_left: int) -> str:
    """Returns a few words for each call."""
    said = [_answer(one, result) for one, result in zip(calls, results, strict=False)]
    return f"{'; '.join(said) if said else 'no call'}\n{turns_left} left"


def _answer(asked: ToolCall, result: ToolResult) -> str:
    data = result.data
    if asked.tool == "Profile" and result.ok and "ratios" in data:
        eager = data["ratios"].get("eager", [0.0])[0]
        matched = data["ratios"].get(data.get("matched", ""), [0.0])[0]
        return f"passed {eager:.2f} {matched:.2f}{' best' if data.get('kept') else ''}"
    if asked.tool in ("Profile", "Verify") and "verdict" in data and not result.ok:
        return str(data["verdict"])
    if asked.tool == "Read" and result.ok:
        found = _CONFIG.search(result.text)  # foreign text: the candidate's file
        return " ".join(f"{letter}:{value}" for letter, value in _LETTER.findall(found.group(1))) if found else "ok"
    return "ok" if result.ok else "error"


def _graph_text(graph: Graph) -> str:
    given = " ".join(_shape(item.meta) for item in graph.inputs if item.values is None)
    lines = [given]
    for node in graph.nodes[:_MOST_NODES]:
        meta = node.outputs[0] if node.outputs else None
        lines.append(f"{node.op.removeprefix('aten.').partition('.')[0]} {_shape(meta)}")
    return "\n".join(lines)


def _shape(meta: TensorMeta | None) -> str:
    if meta is None:
        return "-"
    sizes = " ".join(map(str, meta.shape)) or "1"
    return sizes if meta.dtype == "float32" else f"{sizes} {meta.dtype}"
