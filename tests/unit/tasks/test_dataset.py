"""Splits, parquet, the card, import, statistics and plots."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.tasks.dataset.export import COLUMNS, choose, export
from cuda_agent.tasks.dataset.folder import graphs_of, measured_on, passing, read_tasks
from cuda_agent.tasks.dataset.importing import SPLITS, read_published, split_of, write_candidates
from cuda_agent.tasks.dataset.plots import write_plots
from cuda_agent.tasks.dataset.stats import Spread, logarithmic, read_stats
from cuda_agent.tasks.decontaminate.references import load_references
from cuda_agent.tasks.decontaminate.stage import compare
from cuda_agent.tasks.filter.measurements import stack_hash
from dataset_folders import STACK, graph_of, pairs, source_of, task_of, write_folder


def _compare(folder: Path, tmp_path: Path) -> None:
    reference = tmp_path / "evaluation.py"
    reference.write_text(source_of(["relu", "gelu"]))
    references = load_references([str(reference)], None, lambda text: None)
    measured = measured_on(folder)
    tasks = passing(read_tasks(folder), measured)
    compare(tasks, graphs_of(measured), references, against=[str(reference)]).write(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """120 tasks of two functions and one of one; two that don't run, one that is an evaluation task."""
    made = write_folder(tmp_path / "set", [*pairs(120), task_of(["relu"], 120)], broken=(3, 5))
    _compare(made, tmp_path)
    return made


def test_splits_are_by_graph_and_of_their_sizes() -> None:
    counts = dict.fromkeys(SPLITS, 0)
    for number in range(4000):
        counts[split_of(f"graph {number}")] += 1
        assert split_of(f"graph {number}") == split_of(f"graph {number}")
    assert {name: round(count / 40) for name, count in counts.items()} == pytest.approx(SPLITS, abs=1.5)


def test_export_loads_with_datasets(folder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    counts = export(folder, tmp_path / "out", choose(folder))
    assert sum(counts.values()) == 118
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert {split: len(loaded[split]) for split in loaded} == counts
    rows = [row for split in loaded for row in loaded[split]]
    assert list(rows[0]) == list(COLUMNS) and list(rows[0])[:3] == ["ops", "data_source", "code"]
    graphs = [{row["graph_hash"] for row in loaded[split]} for split in loaded]
    assert not any(graphs[a] & graphs[b] for a in range(len(graphs)) for b in range(a))
    tasks = {task.task.key: task for task in read_tasks(folder)}
    for row in rows:
        task = tasks[row["key"]]
        assert row["code"] == task.task.source and row["graph_hash"] == graph_of(task)
        assert row["eager_low_us"] < row["eager_us"] < row["eager_high_us"]
        assert row["stack"] == stack_hash(STACK) and row["split"] == split_of(row["graph_hash"])


def test_export_is_the_same_bytes_and_small(folder: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    for name in ("one", "two"):
        export(folder, tmp_path / name, choose(folder))
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert "README.md" in files and "train.parquet" in files
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    written = pyarrow.parquet.ParquetFile(tmp_path / "one" / "train.parquet")
    assert written.metadata.row_group(0).column(2).compression == "ZSTD"


def test_a_stage_that_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "similarity.jsonl").rename(tmp_path / "similarity.jsonl")
    with pytest.raises(UsageError, match="not decontaminated"):
        choose(folder)
    lines = (tmp_path / "similarity.jsonl").read_text().splitlines(keepends=True)
    (folder / "similarity.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(UsageError, match="not compared"):
        choose(folder)
    next(folder.glob("measurements-*")).unlink()
    with pytest.raises(UsageError, match="no measurements"):
        choose(folder)
    with pytest.raises(UsageError, match="no candidates"):
        read_stats(tmp_path)


def test_count_is_at_the_published_shares(folder: Path) -> None:
    with pytest.raises(UsageError, match="too few of some kind"):
        choose(folder, count=110)


def test_import_takes_what_export_wrote(folder: Path, tmp_path: Path) -> None:
    export(folder, tmp_path / "out", choose(folder))
    tasks = read_published(tmp_path / "out" / "train.parquet")
    known = {task.task.key: task for task in read_tasks(folder)}
    for task in tasks:
        assert (task.ops == known[task.task.key].ops and task.task.origin == "torch#2") or task.ops == ("F.relu",)
        assert task.task.split == "train" and task.task.name == known[task.task.key].task.name
    path = write_candidates(tmp_path / "new", tasks)
    assert len(read_tasks(path.parent)) == len(tasks)
    with pytest.raises(UsageError, match="exists"):
        write_candidates(tmp_path / "new", tasks)


def test_import_of_the_published_format(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = {
        "ops": ['["torch.diag", "nn.Linear"]', "['a', 'b']", "torch.abs, torch.exp"],
        "data_source": ["torch#2"] * 3,
        "code": [source_of(["relu", "tanh"], size) for size in (1, 2, 3)],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "set.parquet")
    tasks = read_published(tmp_path / "set.parquet")
    assert [task.ops for task in tasks] == [("torch.diag", "nn.Linear"), ("a", "b"), ("torch.abs", "torch.exp")]
    assert tasks[0].task.name == "00000_diag_linear" and tasks[2].number == 2
    pyarrow.parquet.write_table(pyarrow.table({"code": ["x"]}), tmp_path / "other.parquet")
    with pytest.raises(StoreError, match="ops, data_source"):
        read_published(tmp_path / "other.parquet")


def test_stats_and_plots(folder: Path, tmp_path: Path) -> None:
    stats = read_stats(folder)
    assert stats.candidates == 121 and stats.tasks == 118 and stats.graphs == 118
    assert sum(share.tasks for share in stats.composition) == 118
    assert sum(stats.splits.values()) == sum(stats.bound.values()) == 118
    assert stats.funnel is not None and stats.funnel.all.kept == 118
    assert stats.prediction is not None and 0.8 < stats.prediction.median < 1.3
    written = write_plots(stats, tmp_path / "plots")
    assert {path.stem for path in written} == {
        "composition", "operators", "roofline", "times", "funnel", "similarity",
    }  # fmt: skip
    for path in written:
        root = ElementTree.fromstring(path.read_text())
        assert root.tag.endswith("svg") and "prefers-color-scheme: dark" in path.read_text()


def test_stats_of_what_was_exported_are_the_same(folder: Path, tmp_path: Path) -> None:
    export(folder, tmp_path / "out", choose(folder))
    inside, outside = read_stats(folder), read_stats(tmp_path / "out")
    left_out = {"candidates", "funnel", "decontamination"}
    assert outside.model_dump(exclude=left_out) == inside.model_dump(exclude=left_out)


def test_stats_of_candidates_alone(tmp_path: Path) -> None:
    made = write_folder(tmp_path / "set", pairs(5))
    next(made.glob("measurements-*")).unlink()
    stats = read_stats(made)
    assert stats.tasks == 5 and stats.eager_us is None and stats.funnel is None
    assert {path.stem for path in write_plots(stats, tmp_path)} == {"composition", "operators", "roofline", "times"}


def test_logarithmic_bins_hold_everything() -> None:
    counts, low, high = logarithmic([0.5, 1, 10, 99.9, 100], 4)
    assert (low, high) == (0.1, 1000.0) and sum(counts) == 5
    assert logarithmic([], 3) == ([0, 0, 0], 1.0, 10.0)
    assert Spread.of([]) is None
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(least=1, low=1, median=2, high=3, most=3)
