"""What is chosen of the tasks that passed, and the configuration of a build."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cuda_agent.core.errors import UsageError
from cuda_agent.tasks.build import BuildOptions
from cuda_agent.tasks.choose import choose, kind_of
from cuda_agent.tasks.compose.schedule import PUBLISHED_SHARES, OperatorSchedule
from cuda_agent.tasks.records import DatasetTask
from task_candidates import candidate


def task(number: int, kind: int) -> DatasetTask:
    one = candidate(f"t{number}", f"return x + {number}", number)
    origin = f"torch#{kind}" if kind else "transformers#1"
    return one.model_copy(update={"task": one.task.model_copy(update={"origin": origin})})


def stream(count: int) -> list[DatasetTask]:
    schedule = OperatorSchedule()
    return [task(number, schedule.kind(number)) for number in range(count)]


def test_the_shares_are_the_published_ones() -> None:
    passed = [one for one in stream(1400) if one.number % 7]
    chosen = choose(passed, 1000)
    assert chosen is not None and len(chosen) == 1000
    counts = Counter(kind_of(one) for one in chosen)
    assert all(abs(100 * counts[kind] / 1000 - share) <= 0.5 for kind, share in PUBLISHED_SHARES.items())
    assert [one.number for one in chosen] == sorted(one.number for one in chosen)


def test_too_few_of_a_kind() -> None:
    passed = stream(1200)
    assert choose(passed, 1201) is None
    assert choose([one for one in passed if kind_of(one) != 3], 1000) is None
    rare = [one for one in passed if kind_of(one) != 0]
    some = [one for one in passed if kind_of(one) == 0][:8]
    chosen = choose(sorted([*rare, *some], key=lambda one: one.number), 1000)
    assert chosen is not None and sum(kind_of(one) == 0 for one in chosen) == 8


def test_more_tasks_change_nothing_of_what_is_chosen_first() -> None:
    """A kind's tasks are taken in order: whoever asks for the same number gets the same set."""
    passed = stream(1300)
    assert choose(passed, 1000) == choose([*passed, task(9999, 2)], 1000)


def test_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "build.yaml"
    path.write_text("folder: made\ntasks: 20\nagainst: [./held]\ncompose: {stack: H200}\nfilter: {workers: 2}\n")
    options = BuildOptions.read(path)
    assert options.folder == tmp_path / "made" and options.against == (str(tmp_path / "held"),)
    assert options.filter.workers == 2 and options.compose.stack == "H200"


def test_the_configuration_of_our_data_set() -> None:
    options = BuildOptions.read(Path(__file__).parents[3] / "data" / "dataset.yaml")
    assert options.tasks == 6000 and options.candidates == 6900
    assert options.sealed is not None and options.sealed.exists()
    assert options.seeds is not None and options.seeds.exists() and all(Path(name).exists() for name in options.against)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("folder: a\nagainst: [b]\nsed: 1\n", "Did you mean 'seed'"),
        ("folder: a\nagainst: [b]\nfilter: {worker: 1}\n", "Did you mean 'filter.workers'"),
        ("folder: a\nagainst: [b]\ncompose: {stak: H200}\n", "Did you mean 'compose.stack'"),
        ("folder: a\nagainst: [b]\ncompose: {window_ms: [70, 1.5]}\n", "window_ms: give LOW and HIGH"),
        ("folder: a\nagainst: [b]\ncompose: {stack: H999}\n", "H999"),
        ("folder: a\nagainst: []\n", "against"),
        ("folder: a\n", "against"),
        ("- folder\n", "holds no settings"),
        ("folder: [\n", "is not YAML"),
    ],
)
def test_a_wrong_configuration(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "build.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        BuildOptions.read(path)
