from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.core.errors import UsageError
from cuda_agent.llm.chat import ChatRequest, Reply, Usage
from cuda_agent.tasks.compose.language_model import LanguageModelComposer, RecordedAnswers, Unusable, read_answer
from cuda_agent.tasks.compose.run import Skipped
from cuda_agent.tasks.compose.sizing import Target
from cuda_agent.tasks.crawl import catalogue

SEEDS = tuple(entry.seed for entry in catalogue.read())
SOURCE = '''"""Linear layer followed by ReLU: y = relu(linear(x))."""

import torch
from torch import nn

ROWS, FEATURES = 8192, 4096


class Model(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[int]:
    return [FEATURES]
'''
OFFERED = ["nn.Linear", "F.relu", "nn.LayerNorm"]


def answer(source: str = SOURCE, operators: str = "nn.Linear, F.relu") -> str:
    return f"Here it is.\n\nOPERATORS: {operators}\n\n```python\n{source}```\n"


def test_an_answer_is_read() -> None:
    assert read_answer(answer(), OFFERED, 2) == (("nn.Linear", "F.relu"), SOURCE)
    assert read_answer(answer(operators="`nn.Linear`, `F.relu`"), OFFERED, 2)[0] == ("nn.Linear", "F.relu")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no", "OPERATORS"),
        (answer(operators="nn.Linear"), "1 operators, not 2"),
        (answer(operators="nn.Linear, os.system"), "none of the operators"),
        (answer() + answer(), "2 blocks"),
        (answer(source="def (\n"), "isn't Python"),
        (answer(source=SOURCE.replace("class Model", "class Net")), "no class Model"),
        (answer(source=SOURCE.replace("get_inputs", "inputs")), "no function get_inputs"),
        (answer(source=SOURCE.replace("import torch\n", "import torch\nimport os\n")), "imports os"),
        (answer(source=SOURCE + "while True:\n    pass\n"), "statements beside"),
        (answer(source=SOURCE.split('"""', 2)[2]), "no docstring"),
        (answer(source=SOURCE + "#" * 30_000 + "\n"), "too long"),
    ],
)
def test_what_cannot_be_used(text: str, why: str) -> None:
    with pytest.raises(Unusable, match=why):
        read_answer(text, OFFERED, 2)


class Scripted:
    """In place of an endpoint: gives the operators that it was offered."""

    def __init__(self, bad: int = 0) -> None:
        self.bad, self.asked = bad, 0

    def complete(self, request: ChatRequest) -> Reply:
        self.asked += 1
        told = str(request.messages[1]["content"])
        names = [line.split("`")[1] for line in told.splitlines() if line.startswith("- `")][:2]
        text = "I can't" if self.asked <= self.bad else answer(SOURCE + f"# {self.asked}\n", ", ".join(names))
        return Reply(text, "", (), Usage(10, 5), "stop")


def test_answers_are_kept_and_give_the_same_again(tmp_path: Path) -> None:
    client = Scripted(bad=1)
    first = LanguageModelComposer(SEEDS, 0, Target(), RecordedAnswers(tmp_path, "m", client)).compose(0)
    assert client.asked == 2
    assert first.composer == "llm" and first.cost is None and len(first.ops) == 2
    again = LanguageModelComposer(SEEDS, 0, Target(), RecordedAnswers(tmp_path, "m")).compose(0)
    assert again == first
    with pytest.raises(UsageError, match="has no answer"):
        LanguageModelComposer(SEEDS, 0, Target(), RecordedAnswers(tmp_path, "m")).compose(1)


def test_a_model_that_never_gives_a_problem(tmp_path: Path) -> None:
    with pytest.raises(Skipped, match="OPERATORS"):
        LanguageModelComposer(SEEDS, 0, Target(), RecordedAnswers(tmp_path, "m", Scripted(bad=99))).compose(0)


def test_the_same_text_is_not_taken_twice(tmp_path: Path) -> None:
    class Same(Scripted):
        def complete(self, request: ChatRequest) -> Reply:
            self.asked = 0
            return super().complete(request)

    composer = LanguageModelComposer(SEEDS, 0, Target(), RecordedAnswers(tmp_path, "m", Same()))
    composer.tell(composer.compose(0))
    with pytest.raises(Skipped, match="word for word"):
        composer.compose(1)
