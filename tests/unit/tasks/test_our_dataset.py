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
from cuda_agent.tasks.dataset.importing import SPLITS, split_of
from cuda_agent.tasks.dataset.stats import read_stats
from cuda_agent.tasks.filter.measurements import read_measured

DATA = Path(__file__).parents[3] / "data"


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


def test_an_exported_data_set_is_no_folder_of_stages() -> None:
    with pytest.raises(UsageError, match="is an exported dataset"):
        choose(DATA / "dataset")
    with pytest.raises(UsageError, match="Omit --stack"):
        read_stats(DATA / "dataset", "8a96")
