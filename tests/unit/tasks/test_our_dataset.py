"""The data set that ships in `data/dataset` is what it says: by its own columns, and by what was recorded."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet
import pytest

from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import Task
from cuda_agent.tasks.compose.schedule import PUBLISHED_SHARES
from cuda_agent.tasks.dataset.export import choose
from cuda_agent.tasks.dataset.importing import SPLITS, read_exported, split_of
from cuda_agent.tasks.dataset.stats import read_stats
from cuda_agent.tasks.decontaminate.references import read_fingerprints
from cuda_agent.tasks.decontaminate.stage import SealedComparison, compare
from cuda_agent.tasks.filter.measurements import read_measured
from cuda_agent.tasks.records import Measurement

DATA = Path(__file__).parents[3] / "data"
#: hashes of a held-out exam, beside the repository where there is one.
EXAM = DATA.parents[1] / "shared" / "exam.fingerprints.jsonl"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    return [
        row for split in SPLITS for row in pyarrow.parquet.read_table(DATA / "dataset" / f"{split}.parquet").to_pylist()
    ]


def test_its_composition(rows: list[dict[str, object]]) -> None:
    assert len(rows) == len({row["key"] for row in rows}) == 6000
    sources = Counter(str(row["data_source"]) for row in rows)
    for kind, share in PUBLISHED_SHARES.items():
        name = f"torch#{kind}" if kind else "transformers#1"
        assert sources[name] / 60 == pytest.approx(share, abs=1)
    seeds = Counter(seed for row in rows for seed in set(json.loads(str(row["ops"]))))
    assert len(seeds) >= 200 and max(seeds.values()) <= 0.05 * len(rows)


def test_no_graph_stands_twice(rows: list[dict[str, object]]) -> None:
    graphs = [str(row["graph_hash"]) for row in rows]
    assert len(set(graphs)) == len(graphs)
    assert all(row["split"] == split_of(graph) for row, graph in zip(rows, graphs, strict=True))
    assert all(float(str(row["similarity"])) < 0.9 for row in rows)


def test_every_task_passed_every_filter_on_an_h200(rows: list[dict[str, object]]) -> None:
    measured = read_measured(DATA / "measured" / "h200.jsonl.gz")
    assert measured.stack.gpus[0].name == "NVIDIA H200"
    for row in rows:
        assert row["key"] == Task(name=str(row["name"]), source=str(row["code"])).key
        found = measured.by_key[str(row["key"])]
        assert found.passed and found.eager_us == row["eager_us"] and found.graph_hash == row["graph_hash"]
        assert found.eager_us is not None and 1e3 <= found.eager_us <= 100e3


def test_what_equals_a_sealed_evaluation_task_is_left_out(rows: list[dict[str, object]]) -> None:
    sealed = SealedComparison.read_file(DATA / "sealed.json")
    assert (sealed.references, sealed.references_with_graph) == (250, 242)
    assert len(sealed.left_out) <= sealed.same_graph + sealed.similar_syntax
    assert not {row["key"] for row in rows} & set(sealed.left_out)


@pytest.mark.skipif(not EXAM.is_file(), reason="the exam's fingerprints lie outside the repository")
@pytest.mark.parametrize("folder", ["dataset", "kernel"])
def test_no_task_equals_one_of_the_exam(folder: str) -> None:
    tasks, measured = read_exported(DATA / folder)
    found = compare(tasks, graphs_by_key(measured), read_fingerprints(EXAM), against=(), copies=len(tasks) + 1)
    assert found.account.tasks_with_graph == len(tasks) and found.account.kept == len(tasks)


def graphs_by_key(measured: dict[str, Measurement]) -> dict[str, str]:
    return {key: one.graph_hash for key, one in measured.items() if one.graph_hash is not None}


def test_an_exported_data_set_is_no_folder_of_stages() -> None:
    with pytest.raises(UsageError, match="is an exported dataset"):
        choose(DATA / "dataset")
    with pytest.raises(UsageError, match="Omit --stack"):
        read_stats(DATA / "dataset", "8a96")
