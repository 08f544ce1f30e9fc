"""The composer that asks a language model. Its answers are stored, so the same requests give the same tasks again.

The model's code is only parsed here; the filters run it in the judge's sandbox.
"""

import ast
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path

from cuda_agent.core.assets import filled
from cuda_agent.core.errors import PolicyError, UsageError
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.lines import append, read_lines
from cuda_agent.core.record import StoredRecord
from cuda_agent.llm.chat import ChatClient, ChatRequest, ContextExceeded, Message
from cuda_agent.tasks.compose.affinity import role
from cuda_agent.tasks.compose.run import Skipped, dataset_task
from cuda_agent.tasks.compose.schedule import OperatorSchedule
from cuda_agent.tasks.compose.sizing import Target
from cuda_agent.tasks.records import DatasetTask, Seed

ANSWERS_FILE = "answers.jsonl"
_ATTEMPTS = 3
#: The number of seeds that are offered in addition to the wanted ones.
_SPARE = 5
_LONGEST = 20_000
_OPERATORS = re.compile(r"^\W*OPERATORS:\W*(.+)$", re.MULTILINE)
_BLOCK = re.compile(r"```python[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_MODULES = frozenset(("torch", "torch.nn", "torch.nn.functional", "math"))
_FUNCTIONS = ("get_inputs", "get_init_inputs")


class RecordedAnswer(StoredRecord):
    """A model's answer to one request. `request_digest` is that of the model's name and the messages."""

    request_digest: str
    text: str
    tokens_in: int
    tokens_out: int


class RecordedAnswers:
    """The recorded answers of a folder. With a client, new answers are requested, and recorded before they are used."""

    def __init__(self, folder: Path, model: str, client: ChatClient | None = None) -> None:
        self._path, self._model, self._client = folder / ANSWERS_FILE, model, client
        known = read_lines(self._path, RecordedAnswer, optional=True)
        self._known = {answer.request_digest: answer.text for answer in known}

    def ask(self, messages: Sequence[Message]) -> str:
        """Returns the answer. Raises UsageError when it isn't recorded and there is no client, PolicyError from the
        endpoint."""
        parts = (part for message in messages for part in (message["role"], message["content"]))
        digest = digest_text(self._model, *parts)
        if digest in self._known:
            return self._known[digest]
        if self._client is None:
            raise UsageError(f"{self._path} has no answer to this request", "Give an endpoint for new answers")
        try:
            reply = self._client.complete(ChatRequest(messages))
        except ContextExceeded as error:
            raise PolicyError(f"The model's context is too small ({error})", "Use a model with a longer one") from None
        read, written = reply.usage.read, reply.usage.written
        append(self._path, [RecordedAnswer(request_digest=digest, text=reply.text, tokens_in=read, tokens_out=written)])
        self._known[digest] = reply.text
        return reply.text


class LanguageModelComposer:
    """A `Composer` over a model's answers."""

    name = "llm"

    def __init__(self, seeds: Sequence[Seed], seed: int, target: Target, answers: RecordedAnswers) -> None:
        self._seeds = [item for item in seeds if item.library == "torch"]
        self._modules = [item for item in seeds if item.library == "transformers"]
        self._seed, self._target, self._answers = seed, target, answers
        self._schedule = OperatorSchedule()
        self._texts: set[str] = set()

    def tell(self, task: DatasetTask) -> None:
        """Adds a task of the dataset, whose text isn't accepted again."""
        self._texts.add(task.task.source)

    def compose(self, number: int) -> DatasetTask:
        """Returns task `number`. Raises Skipped when no answer of the model is a task; UsageError, PolicyError."""
        rng = random.Random(f"{self._seed}:{number}")
        count = max(1, self._schedule.kind(number))
        offered = self._offered(count, rng)
        wanted_ms = round(math.exp(rng.uniform(math.log(self._target.low_ms), math.log(self._target.high_ms))), 1)
        asked = self._said("task", count=count, seeds=offered, target=self._target, wanted_ms=wanted_ms)
        messages: list[Message] = [
            {"role": "system", "content": self._said("system")}, {"role": "user", "content": asked}
        ]  # fmt: skip
        problem = ""
        for _ in range(_ATTEMPTS):
            text = self._answers.ask(messages)
            try:
                ops, source = read_answer(text, [seed.name for seed in offered], count)
                if source in self._texts:
                    raise Unusable("it is word for word an earlier problem")
                seeds = {seed.name: seed for seed in offered}
                return dataset_task(self.name, number, [seeds[name] for name in ops], source)
            except Unusable as error:
                problem = str(error)
            messages += [
                {"role": "assistant", "content": text or "(nothing)"},
                {"role": "user", "content": self._said("again", problem=problem)},
            ]
        raise Skipped(f"after {_ATTEMPTS} answers: {problem}")

    def _offered(self, count: int, rng: random.Random) -> list[Seed]:
        """Returns distinct operators of many families, in random order."""
        found: dict[str, Seed] = {}
        families = sorted({role(seed) for seed in self._seeds})
        if not families:
            raise UsageError("There are no torch seeds", "Run: cuda-agent tasks crawl")
        for _ in range(50 * (count + _SPARE)):
            family = rng.choice(families)
            seed = rng.choice([item for item in self._seeds if role(item) == family])
            found.setdefault(seed.operator, seed)
            if len(found) == count + _SPARE:
                break
        return list(found.values())

    def _said(self, prompt: str, **values: object) -> str:
        return filled(Path(__file__).parent / "prompts" / f"{prompt}.md.j2", **values).strip()


class Unusable(Exception):
    """What is wrong with an answer, in words for the model."""


def read_answer(text: str, offered: Sequence[str], count: int) -> tuple[tuple[str, ...], str]:
    """Returns (names of the seeds in order, source) from an answer. Raises Unusable. The source is parsed, not run."""
    named = _OPERATORS.search(text)
    if named is None:
        raise Unusable("there is no line that begins with OPERATORS:")
    ops = tuple(part.strip(" `*.\t") for part in named[1].split(","))
    strangers = [name for name in ops if name not in offered]
    if strangers:
        raise Unusable(f"{strangers[0]!r} is none of the operators")
    if len(ops) != count:
        raise Unusable(f"it uses {len(ops)} operators, not {count}")
    blocks = _BLOCK.findall(text)
    if len(blocks) != 1:
        raise Unusable(f"there are {len(blocks)} blocks of ```python, not one")
    source = blocks[0].strip() + "\n"
    _check(source)
    return ops, source


def _check(source: str) -> None:
    """Checks the form of a problem. Raises Unusable."""
    if len(source) > _LONGEST:
        raise Unusable("the file is too long")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unusable(f"it isn't Python: {error}") from None
    if not ast.get_docstring(tree):
        raise Unusable("the file has no docstring")
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if "Model" not in classes:
        raise Unusable("there is no class Model")
    missing = [name for name in _FUNCTIONS if name not in functions]
    if missing:
        raise Unusable(f"there is no function {missing[0]}")
    imported = {
        name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for name in _imported(node)
    }
    if imported - _MODULES:
        raise Unusable(f"it imports {min(imported - _MODULES)}")
    kinds = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.Assign, ast.AnnAssign)
    if not all(isinstance(node, kinds) for node in tree.body[1:]):
        raise Unusable("the file holds statements beside imports, constants, Model and its functions")


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [node.module or "."] if isinstance(node, ast.ImportFrom) else [item.name for item in node.names]
