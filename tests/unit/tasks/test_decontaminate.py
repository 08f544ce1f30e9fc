"""References of every kind, fingerprint files, and the stage that compares."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.lines import append
from cuda_agent.tasks.decontaminate.reading import TaskSource
from cuda_agent.tasks.decontaminate.references import (
    EvaluationTask,
    load_references,
    read_fingerprints,
    source_id,
    write_fingerprints,
)
from cuda_agent.tasks.decontaminate.stage import SealedComparison, compare
from cuda_agent.tasks.records import Rule
from dataset_folders import FUNCTIONS, graph_of, pairs, source_of, task_of
from task_mutators import everything

ROOT = Path(__file__).resolve().parents[3]


def _quiet(text: str) -> None:
    del text


def _no_graphs(sources: Sequence[TaskSource], say: object) -> Mapping[str, str]:
    return {}


def _load(*given: object) -> list[str]:
    return [reference.name for reference in load_references([str(path) for path in given], _no_graphs, _quiet)]


# ---------------------------------------------------------------- references


def test_a_folder_with_levels(tmp_path: Path) -> None:
    for level, name in (("level1", "1_a.py"), ("level2", "2_b.py")):
        (tmp_path / level).mkdir()
        (tmp_path / level / name).write_text(source_of(["relu"]))
    (tmp_path / "level1" / "__init__.py").write_text("")
    assert _load(tmp_path) == ["level1/1_a.py", "level2/2_b.py"]
    assert _load(tmp_path / "level1" / "1_a.py") == ["1_a.py"]


def test_parquet_candidates_and_saved_data_sets(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    datasets = pytest.importorskip("datasets")
    rows = {"id": [7, 8], "text": ["not python:", "x ="], "Code": [source_of(["relu"]), source_of(["tanh"])]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "set.parquet")
    assert _load(tmp_path / "set.parquet") == ["set.parquet: 7", "set.parquet: 8"]
    append(tmp_path / "candidates.jsonl", pairs(3))
    assert len(_load(tmp_path / "candidates.jsonl")) == 3
    made = datasets.Dataset.from_dict(rows)
    made.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"level_1": made, "level_2": made}).save_to_disk(str(tmp_path / "several"))
    assert len(_load(tmp_path / "one")) == 2
    assert len(_load(tmp_path / "several", tmp_path / "set.parquet")) == 6


def test_nothing_given_empty_or_unreadable_is_refused(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    empty, broken, other = tmp_path / "empty", tmp_path / "broken", tmp_path / "other.parquet"
    empty.mkdir()
    broken.mkdir()
    (broken / "fine.py").write_text(source_of(["relu"]))
    (broken / "cut.py").write_text("class Model(")
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["say hello to"]}), other)
    (tmp_path / "none.parquet").write_bytes(b"PAR1 and then nothing")
    pyarrow.parquet.write_table(pyarrow.table({"code": pyarrow.array([], pyarrow.string())}), tmp_path / "zero.parquet")
    (tmp_path / "blank.py").write_text("\n")
    with pytest.raises(UsageError, match="No evaluation set is given"):
        _load()
    for path, error in (
        (empty, UsageError),
        (tmp_path / "missing", UsageError),
        (tmp_path / "zero.parquet", UsageError),
        (broken, StoreError),
        (other, StoreError),
        (tmp_path / "none.parquet", StoreError),
        (tmp_path / "blank.py", StoreError),
    ):
        with pytest.raises(error):
            _load(ROOT / "examples" / "swiglu.py", path)
    with pytest.raises(UsageError):
        compare(pairs(2), {}, [], against=[])


def test_fingerprints_show_nothing_and_recognise_everything(tmp_path: Path) -> None:
    folder = ROOT / "tests" / "data" / "evaluation_set"
    sealed = tmp_path / "sealed.jsonl"

    def graphs(sources: Sequence[TaskSource], say: object) -> Mapping[str, str]:
        return {source_id(source.text): f"graph {place}" for place, source in enumerate(sources[:3])}

    written = write_fingerprints(sealed, str(folder), graphs, _quiet)
    text = sealed.read_text()
    shown = [path.stem for path in folder.glob("*.py") if path.stem in text]
    assert not shown and "forward" not in text and "torch" not in text
    references = load_references([str(sealed)], None, _quiet)
    assert len(references) == len(written) == len(list(folder.glob("*.py")))
    assert sum(reference.graph is not None for reference in references) == 3
    for source in (folder / "gru_step.py", folder / "dice_overlap.py"):
        task = task_of(["relu"], 0)
        written_otherwise = task.task.model_copy(update={"source": everything(source.read_text())})
        changed = task.model_copy(update={"task": written_otherwise})
        found = compare([changed], {}, references, against=[str(sealed)])
        assert found.lines[0].finding is not None


def test_damaged_fingerprints_are_refused(tmp_path: Path) -> None:
    sealed = tmp_path / "sealed.jsonl"
    (tmp_path / "task.py").write_text(source_of(["relu", "tanh"]))
    write_fingerprints(sealed, str(tmp_path / "task.py"), _no_graphs, _quiet)
    lines = sealed.read_text().splitlines()
    assert len(read_fingerprints(sealed)) == 1
    head = json.loads(lines[0])
    for text in (
        lines[0] + "\n",
        json.dumps(head | {"shingles_version": 0}) + "\n" + lines[1] + "\n",
        lines[0] + "\n" + lines[1][:40] + "\n",
        json.dumps(head | {"count": 0}) + "\n",
    ):
        sealed.write_text(text)
        with pytest.raises(StoreError):
            read_fingerprints(sealed)


# ---------------------------------------------------------------- the stage


def _references(tmp_path: Path, *functions: Sequence[str], graphs: Mapping[str, str] | None = None) -> list:
    for number, names in enumerate(functions):
        (tmp_path / f"{number}.py").write_text(source_of(names, size=1000 + number))

    def capture(sources: Sequence[TaskSource], say: object) -> Mapping[str, str]:
        return {source_id(s.text): graphs[s.name] for s in sources if graphs and s.name in graphs}

    return load_references([str(tmp_path)], capture, _quiet)


def test_each_test_alone_finds_it(tmp_path: Path) -> None:
    tasks = pairs(4)
    graphs = {task.task.key: graph_of(task) for task in tasks}
    found = compare(tasks, graphs, _references(tmp_path, FUNCTIONS[:2]), against=["x"]).lines
    assert [line.finding is None for line in found] == [False, True, True, True]
    assert found[0].similarity == 1 and found[0].finding.rule is Rule.SIMILAR
    by_graph = _references(tmp_path, ["rrelu"], graphs={"0.py": graph_of(tasks[2])})
    found = compare(tasks, graphs, by_graph, against=["x"]).lines
    assert [line.same_graph for line in found] == [None, None, "0.py", None]
    assert found[2].similarity < 0.9 and found[2].finding.rule is Rule.SIMILAR


def test_duplicates_within_the_set(tmp_path: Path) -> None:
    a, b = ["relu", "tanh"], ["gelu", "silu"]
    tasks = [task_of(a, 0), task_of(b, 1), task_of(a, 2, size=128), task_of(["mish", "elu"], 3), task_of(a, 4, size=7)]
    references = _references(tmp_path, ["selu", "celu"])
    rules = [line.finding and line.finding.rule for line in compare(tasks, {}, references, against=["x"]).lines]
    assert rules == [None, None, Rule.DUPLICATE, None, Rule.DUPLICATE]
    # By the graph alone: another text, the same graph.
    graphs = {tasks[1].task.key: "g", tasks[3].task.key: "g"}
    lines = compare(tasks, graphs, references, against=["x"], copies=2).lines
    assert [line.finding and line.finding.rule for line in lines] == [None, None, None, None, Rule.DUPLICATE]
    lines = compare(tasks, graphs, references, against=["x"]).lines
    assert lines[3].finding is not None and lines[3].finding.rule is Rule.DUPLICATE
    assert compare(tasks, graphs, references, against=["x"]).lines == lines


def test_what_is_left_out_is_nobodys_twin(tmp_path: Path) -> None:
    tasks = [task_of(["relu", "tanh"], 0), task_of(["relu", "tanh"], 1, size=9)]
    lines = compare(tasks, {}, _references(tmp_path, ["relu", "tanh"]), against=["x"]).lines
    assert [line.finding.rule for line in lines if line.finding] == [Rule.SIMILAR, Rule.SIMILAR]


def test_the_account(tmp_path: Path) -> None:
    tasks = pairs(30)
    compared = compare(tasks, {}, _references(tmp_path, FUNCTIONS[:2], ["selu"]), against=["x"])
    account = compared.account
    assert account.kept == 29 and account.similar_syntax == 1 and account.references == 2
    assert sum(account.histogram) == sum(account.twins) == 30 and account.histogram[-1] == 1
    compared.write(tmp_path / "out")
    assert len((tmp_path / "out" / "similarity.jsonl").read_text().splitlines()) == 30


def test_a_sealed_comparison_counts_without_its_evaluation_tasks(tmp_path: Path) -> None:
    """A recorded comparison leaves out the same tasks as the comparison itself, and names no evaluation task."""
    tasks, exam, own = pairs(10), _references(tmp_path, FUNCTIONS[:2]), _references(tmp_path, ["rrelu", "selu"])
    exam.append(EvaluationTask("by its graph", own[0].shingles, "g"))
    direct = compare(tasks, {tasks[3].task.key: "g"}, exam, against=["x"])
    sealed = SealedComparison.from_json(direct.sealed().to_json())
    lost = [line.task_key for line in direct.lines if line.finding and line.finding.rule is Rule.SIMILAR]
    assert sealed.left_out == tuple(sorted(lost)) and tasks[3].task.key in lost
    assert (sealed.tasks, sealed.references, sealed.same_graph) == (10, 2, 1)
    assert not any(one.name in sealed.to_json() for one in exam)
    found = compare(tasks, {}, own, against=["own"], sealed=sealed)
    assert [line.task_key for line in found.lines if line.finding is not None] == lost
    assert found.account.sealed == sealed and found.account.similar_syntax == 0
