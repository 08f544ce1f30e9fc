from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.cli.main import run as command
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.lines import append, read_lines
from cuda_agent.tasks.compose.run import SEEDS_FILE, runs_with
from cuda_agent.tasks.crawl import catalogue
from cuda_agent.tasks.crawl.crawl import marked
from cuda_agent.tasks.records import CANDIDATES_FILE, DatasetTask


def folder(path: Path) -> Path:
    append(path / SEEDS_FILE, [entry.seed for entry in catalogue.read()])
    return path


def compose(path: Path, count: int, *more: str) -> int:
    return command(["tasks", "compose", str(path), "--count", str(count), *more])


def test_growing_is_the_same_as_composing_at_once(tmp_path: Path) -> None:
    whole, grown = folder(tmp_path / "whole"), folder(tmp_path / "grown")
    assert compose(whole, 7) == 0
    assert compose(grown, 3) == compose(grown, 5) == 0
    file = grown / CANDIDATES_FILE
    # A kill in the middle of a line.
    file.write_bytes(file.read_bytes()[:-40])
    assert compose(grown, 7) == compose(grown, 7) == 0
    assert file.read_bytes() == (whole / CANDIDATES_FILE).read_bytes()
    assert [task.number for task in read_lines(file, DatasetTask)] == list(range(7))


def test_another_stream_needs_another_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path)
    assert compose(path, 1) == 0
    assert compose(path, 2, "--seed", "1") == 2
    assert "another seed" in capsys.readouterr().err
    assert compose(path, 2, "--window-ms", "1", "5") == 2
    append(path / SEEDS_FILE, [catalogue.read()[0].seed])
    assert compose(path, 2) == 2


@pytest.mark.parametrize(
    "options", [["--window-ms", "5", "2"], ["--stack", "abacus"], ["--runs-with", "torch"], ["--model", "m"]]
)
def test_bad_options(tmp_path: Path, options: list[str]) -> None:
    assert compose(folder(tmp_path), 1, *options) == 2


def test_seeds_that_need_a_newer_library_are_left_out() -> None:
    seeds = marked(entry.seed for entry in catalogue.read())
    newer = [item.name for item in seeds if item.needs]
    assert newer == ["nn.LinearCrossEntropyLoss", "F.linear_cross_entropy"]
    assert len(runs_with(seeds, {"torch": "2.11"})) == len(seeds) - len(newer)
    assert runs_with(seeds, {"torch": "2.13.1+cu130"}) == runs_with(seeds, {}) == seeds
    with pytest.raises(UsageError, match="a version"):
        runs_with(seeds, {"torch": "latest"})


def test_no_seeds(tmp_path: Path) -> None:
    assert compose(tmp_path, 1) == 2


def test_a_file_of_something_else(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / CANDIDATES_FILE).write_text("{}\n")
    with pytest.raises(StoreError, match="line 1"):
        read_lines(path / CANDIDATES_FILE, DatasetTask)
