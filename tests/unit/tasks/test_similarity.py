"""Whether a task is recognised however it is written, and left alone where it is another."""

from __future__ import annotations

import ast
import contextlib
import random
from pathlib import Path

import pytest

from cuda_agent.core.errors import TaskError
from cuda_agent.tasks.compose.builtin import BuiltinComposer
from cuda_agent.tasks.compose.schedule import OperatorSchedule
from cuda_agent.tasks.compose.sizing import Target
from cuda_agent.tasks.crawl import catalogue
from cuda_agent.tasks.decontaminate.computation import follow
from cuda_agent.tasks.decontaminate.index import Index
from cuda_agent.tasks.decontaminate.shingles import Bag, Shingles, shingles
from cuda_agent.tasks.decontaminate.spelling import canonical
from cuda_agent.tasks.decontaminate.values import Unfollowable
from task_mutators import MUTATORS, everything

ROOT = Path(__file__).resolve().parents[3]
EVALUATION = {path.stem: path.read_text() for path in sorted((ROOT / "tests/data/evaluation_set").glob("*.py"))}
EXAMPLES = {path.stem: path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))}
THRESHOLD = 0.9


def alike(first: Shingles, second: Shingles) -> float:
    """Returns the similarity that `Index` computes, by its definition."""
    if first.computation and second.computation:
        return jaccard(first.computation, second.computation)
    return jaccard(first.syntax, second.syntax)


def jaccard(first: Bag, second: Bag) -> float:
    """Returns the shared shingles over all, each as often as it occurs; 0 where either is empty."""
    if not first or not second:
        return 0.0
    shared = (first & second).total()
    return shared / (first.total() + second.total() - shared)


@pytest.fixture(scope="module")
def references() -> dict[str, Shingles]:
    return {name: shingles(source, name) for name, source in EVALUATION.items()}


def test_there_are_enough() -> None:
    assert len(EVALUATION) >= 40


@pytest.mark.parametrize("mutator", [*MUTATORS, "everything"])
def test_every_task_is_caught_written_otherwise(mutator: str, references: dict[str, Shingles]) -> None:
    change = everything if mutator == "everything" else MUTATORS[mutator]
    unchanged = 0
    for name, source in EVALUATION.items():
        written = change(source)
        unchanged += ast.dump(ast.parse(written)) == ast.dump(ast.parse(source))
        assert alike(shingles(written, name), references[name]) >= THRESHOLD, f"{name}\n{written}"
    # A mutator that leaves most as they are tests nothing.
    assert unchanged < 0.7 * len(EVALUATION), unchanged


def test_others_are_kept(references: dict[str, Shingles]) -> None:
    others = {name: shingles(source, name) for name, source in EXAMPLES.items()}
    pairs = [(a, b) for a in others for b in references]
    pairs += [(a, b) for a in references for b in references if a < b]
    everyone = references | others
    scores = [alike(everyone[a], everyone[b]) for a, b in pairs]
    assert max(scores) < 0.6, pairs[scores.index(max(scores))]


def test_composed_tasks_are_kept(references: dict[str, Shingles]) -> None:
    composer = BuiltinComposer([entry.seed for entry in catalogue.read()], 0, Target())
    numbers = [number for number in range(20) if OperatorSchedule().kind(number)]
    index = Index(list(references.values()))
    tasks = [composer.compose(number) for number in numbers]
    nearest = [float(index.similarities(shingles(t.task.source, t.task.name)).max()) for t in tasks]
    assert sum(score < THRESHOLD for score in nearest) >= 0.95 * len(nearest), sorted(nearest)[-3:]


def test_index_agrees_with_the_definition(references: dict[str, Shingles]) -> None:
    names = sorted(references)
    index = Index([references[name] for name in names])
    for name in random.Random(0).sample(names, 8):
        found = index.similarities(references[name])
        assert found.tolist() == pytest.approx([alike(references[name], references[other]) for other in names])


def test_where_there_is_no_model_the_syntax_is_compared() -> None:
    script = "import torch\nfor i in range(3):\n    print(torch.arange(i).sum())\n"
    other = "import os\nprint(os.listdir('.'))\n"
    assert not shingles(script, "script").computation
    same = script.replace("for i ", "for k ").replace("range(3)", "range(7)").replace("(i)", "(k)")
    assert alike(shingles(script, "a"), shingles(same, "b")) == 1
    assert alike(shingles(script, "a"), shingles(other, "b")) < 0.5


def test_what_is_not_python_is_refused() -> None:
    for text in ("class Model(:", "x = " + "(" * 5000, "\0"):
        with pytest.raises(TaskError):
            shingles(text, "broken")


@pytest.mark.parametrize(
    "body",
    [
        "return self.forward(x)",
        "y = x\n        for a in range(9):\n            y = torch.sin(y) + y\n        return y",
        "while True:\n            x = x + 1\n        return x",
        "return [torch.exp(x) for x in [x] * 10]",
        "f = lambda g: g(g)\n        return f(f)",
        "\n        ".join(["y = [x]", *["y = [y, y]"] * 60, "return torch.cat(y)"]),
        "\n        ".join(["y = [x]", *["y = y + y"] * 60, "return torch.cat(y)"]),
        "\n        ".join(["y = [x]", *["y.extend(y)"] * 60, "return torch.cat(y)"]),
        "\n        ".join(["c = x.shape[0]", *["c = c + c"] * 60, "return torch.exp(x * c)"]),
        "\n        ".join(["y = {0: x}", *["y = {0: y, 1: y}"] * 60, "return torch.cat(list(y.values()))"]),
        f"return x + 0x{'f' * 9000}",
    ],
)
def test_following_ends(body: str) -> None:
    source = f"import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        {body}\n"
    with contextlib.suppress(Unfollowable):
        follow(ast.parse(source))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("nn.LogSoftmax", "F.log_softmax"),
        ("nn.BatchNorm2d", "torch.nn.functional.batch_norm"),
        ("nn.CrossEntropyLoss", "F.cross_entropy"),
        ("nn.BCEWithLogitsLoss", "F.binary_cross_entropy_with_logits"),
        ("nn.KLDivLoss", "F.kl_div"),
        ("nn.ConvTranspose3d", "F.conv_transpose3d"),
        ("nn.AdaptiveAvgPool2d", "F.adaptive_avg_pool2d"),
        ("nn.ZeroPad2d", "F.pad"),
        ("torch.clip", "clamp_"),
        ("torch.ops.aten.mm.default", "torch.matmul"),
    ],
)
def test_spellings(first: str, second: str) -> None:
    assert canonical(first) == canonical(second)
