"""The tasks of preset `kernel`: their families, their sizes, and what is held out; and the set that ships."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from cuda_agent.core.assets import tables, words
from cuda_agent.core.errors import UsageError
from cuda_agent.tasks import kernel_set
from cuda_agent.tasks.dataset.importing import read_exported
from cuda_agent.tasks.decontaminate.references import EvaluationTask
from cuda_agent.tasks.decontaminate.shingles import shingles
from cuda_agent.tasks.kernel_set import KernelTask
from cuda_agent.tasks.records import Cost, DatasetTask, Measurement
from cuda_agent.training.environment.opening import EnvironmentOptions, read_tasks
from task_candidates import candidate

ROOT = Path(__file__).resolve().parents[3]


def made(number: int, family: str, graph: str, operators: tuple[str, ...], split: str | None = "train") -> KernelTask:
    one = candidate(f"t{number}", f"return x + {number}", number)
    task = one.model_copy(update={"task": one.task.model_copy(update={"origin": family})})
    return KernelTask(task, one.task.source, split, graph, operators)


def test_the_family_follows_from_the_operators() -> None:
    assert kernel_set.family_of(("relu",), 1) == "one operator"
    assert kernel_set.family_of(("relu", "add", "view"), 2) == "elementwise"
    assert kernel_set.family_of(("relu", "sum"), 2) == "reduction"
    assert kernel_set.family_of(("softmax", "sum"), 2) == "normalisation"
    assert kernel_set.family_of(("relu", "conv2d"), 2) is None and kernel_set.family_of(("view",), 1) is None


def test_sizes_shrink_from_the_first_and_widths_stay() -> None:
    source = "import torch\n\nBATCH, CHANNELS, HEIGHT, WIDTH = 8, 256, 64, 64\nGROUPS = 4\n"
    small, part = kernel_set.shrunk(source, 1 / 16)
    assert small == source.replace("8, 256, 64, 64", "2, 256, 16, 64") and part == 1 / 16
    assert kernel_set.shrunk(source, 1.0) == (source, 1.0)
    least, part = kernel_set.shrunk(source, 0.0)
    assert "2, 256, 2, 2" in least and part == 1 / 4 / 32 / 32
    assert kernel_set.shrunk("x = 3\n", 0.5) == ("x = 3\n", 1.0)


def test_tasks_of_the_data_set_keep_their_program_and_split() -> None:
    one = candidate("t", "return torch.relu(x)", rows="ROWS")
    source = one.task.source.replace("import torch\n", "import torch\n\nROWS, FEATURES = 65536, 8192\n", 1)
    task = one.task.model_copy(update={"source": source, "split": "test"})
    given = one.model_copy(update={"task": task, "ops": ("relu",), "cost": Cost(flops=1, bytes=4e9, predicted_us=1)})
    measured = {task.key: Measurement(task_key=task.key, finding=None, graph_operators=("relu",))}
    (found,) = kernel_set.of_dataset([given], measured)
    assert found.family == "one operator" and found.split == "test"
    assert found.task.task.source == source.replace("65536", "4096") and "ROWS, FEATURES = 64" in found.small
    fixed = given.model_copy(update={"task": one.task})
    measured = {one.task.key: Measurement(task_key=one.task.key, finding=None, graph_operators=("relu",))}
    assert not list(kernel_set.of_dataset([fixed], measured))


def test_written_tasks_follow_from_the_seed() -> None:
    first = list(kernel_set.written(0))
    assert first == list(kernel_set.written(0)) and first != list(kernel_set.written(1))
    about = tables(kernel_set.__file__)["families"]
    assert Counter(one.family for one in first) == {name: one["tasks"] for name, one in about.items()}
    assert len({one.task.task.key for one in first}) == len({one.task.task.name for one in first}) == len(first)
    for one in first:
        ast.parse(one.task.task.source)


def test_what_is_held_out() -> None:
    unseen = words(kernel_set.__file__, "unseen")
    given = [made(n, "abc"[n % 3], f"graph {n}", ("relu", "sum")) for n in range(100)]
    given += [made(n, "abc"[n % 3], f"graph {n}", ("relu", "sum"), "validation") for n in range(100, 160)]
    given += [made(n, "abc"[n % 3], f"graph {n}", ("relu", unseen[n % 2]), "train") for n in range(160, 220)]
    given += [made(220, "a", "graph 220", ("tanh",), "test")]
    train, held_out = kernel_set.divide(given, 0)
    assert len(train) == 100 and not {one.graph for one in train} & {one.graph for one in held_out}
    new = [one for one in held_out if not set(unseen) & set(one.operators)]
    assert len(held_out) == 48 and len(new) == 24 and all(one.split == "validation" for one in new)
    assert set(Counter(one.family for one in new).values()) == {8}
    assert (train, held_out) == kernel_set.divide(given, 0)


def test_what_equals_an_evaluation_task_is_left_out() -> None:
    given = [made(n, "a", f"graph {n}", ("relu",)) for n in range(3)]
    other = shingles(candidate("other", "return self.linear(x).cumsum(1)").task.source, "other")
    same = shingles(given[2].task.task.source, "same")
    references = [EvaluationTask("by graph", other, "graph 0"), EvaluationTask("by text", same, None)]
    assert kernel_set.without(given, references[:1]) == given[1:]
    # The three differ by a number only, which the texts' comparison doesn't see.
    assert kernel_set.without(given, references) == [] and kernel_set.without(given, []) == given


# ---------------------------------------------------------------- data/kernel


@pytest.fixture(scope="module")
def shipped() -> tuple[list[DatasetTask], dict[str, Measurement]]:
    return read_exported(ROOT / "data" / "kernel")


def test_the_set_that_ships(shipped: tuple[list[DatasetTask], dict[str, Measurement]]) -> None:
    tasks, measured = shipped
    train = [measured[one.task.key] for one in tasks if one.task.split == kernel_set.TRAIN]
    held_out = [measured[one.task.key] for one in tasks if one.task.split == kernel_set.HELD_OUT]
    assert 1500 <= len(train) <= 1700 and len(held_out) == 2 * kernel_set.OF_A_KIND
    graphs = [one.graph_hash for one in (*train, *held_out)]
    assert len(set(graphs)) == len(graphs) and None not in graphs
    seen = {name for one in train for name in one.graph_operators}
    assert not seen & set(words(kernel_set.__file__, "unseen"))
    assert sum(seen.issuperset(one.graph_operators) for one in held_out) == kernel_set.OF_A_KIND
    families = {*tables(kernel_set.__file__)["families"], "one operator", "elementwise", "reduction", "normalisation"}
    assert {one.task.origin for one in tasks} == families
    assert (ROOT / "data/kernel/train.parquet").stat().st_size < 1_000_000


def test_it_is_made_of_the_data_set_and_the_written_families(
    shipped: tuple[list[DatasetTask], dict[str, Measurement]],
) -> None:
    drafts = [*kernel_set.of_dataset(*read_exported(ROOT / "data" / "dataset")), *kernel_set.written(0)]
    known = {one.task.task.key: one for one in drafts}
    assert all(known[one.task.key].family == one.task.origin for one in shipped[0])
    theirs = {one.task.key for one in shipped[0] if one.task.split == kernel_set.TRAIN}
    assert all(known[key].split in (None, kernel_set.TRAIN) for key in theirs)


def test_a_training_reads_it() -> None:
    train, held_out = read_tasks(EnvironmentOptions(tasks=str(ROOT / "data" / "kernel"), most_tasks=40))
    assert (len(train), len(held_out)) == (40, 40) and len({one.origin for one in train}) >= 5


def test_a_folder_of_stages_is_refused(tmp_path: Path) -> None:
    from cuda_agent.cli.main import run

    assert run(["tasks", "kernel", str(tmp_path), "--out", str(tmp_path / "out")]) == UsageError.exit_code
