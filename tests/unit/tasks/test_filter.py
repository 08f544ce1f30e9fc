"""The filter's parts that need no process."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.files import locked
from cuda_agent.core.stack import Gpu, Stack
from cuda_agent.pool.rule import Need
from cuda_agent.tasks.filter.check import need_of
from cuda_agent.tasks.filter.funnel import funnel
from cuda_agent.tasks.filter.measurements import FILTER_LOCK, Journal, merge, read_all, stack_for, stack_hash
from cuda_agent.tasks.filter.options import FilterOptions
from cuda_agent.tasks.filter.passes import Passes
from cuda_agent.tasks.filter.records import Checked, from_fault, from_finding, same_sample
from cuda_agent.tasks.filter.run import Shard, _Run, filter_folder, read_candidates
from cuda_agent.tasks.records import Cost, DatasetTask, Measurement, Rule, TaskFinding
from cuda_agent.workers.process import Fault
from cuda_agent.workers.requests import FaultKind
from task_candidates import candidate, write_candidates

GPU = Gpu(name="NVIDIA H200", uuid="GPU-1", compute_capability="9.0")
STACK = Stack(gpus=(GPU,), torch="2.11", python="3.12", cpu="x", cpu_cores=16, cuda_agent="0.1.0")


def measurement(key: str, rule: Rule | None = None) -> Measurement:
    finding = None if rule is None else TaskFinding(rule=rule, detail="why")
    return Measurement(task_key=key, finding=finding, eager_us=None if rule else 2000.0)


def test_machines_of_a_kind_share_a_stack() -> None:
    other = STACK.model_copy(update={"gpus": (GPU.model_copy(update={"uuid": "GPU-2"}),), "cuda_agent": "0.2"})
    assert stack_hash(STACK) == stack_hash(other)
    assert stack_hash(stack_for(STACK, Device.CPU)) != stack_hash(stack_for(STACK, Device.CUDA))
    assert stack_hash(STACK.model_copy(update={"torch": "2.12"})) != stack_hash(STACK)


def test_a_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    journal = Journal(tmp_path, STACK)
    journal.add(measurement("a"))
    journal.add_checked(Checked(task_key="b", sample=((1.0, 2.0),)))
    journal.path.write_bytes(journal.path.read_bytes() + b'{"task_key":')
    again = Journal(tmp_path, STACK)
    assert set(again.measured) == {"a"} and again.checked["b"].sample == ((1.0, 2.0),)
    again.add(measurement("c"))
    (found,) = read_all(tmp_path)
    assert set(found.by_key) == {"a", "c"} and found.stack == STACK


def test_a_journal_killed_before_its_first_line(tmp_path: Path) -> None:
    path = Journal(tmp_path, STACK).path
    path.write_bytes(b'{"schema_vers')
    Journal(tmp_path, STACK).add(measurement("a"))
    assert set(read_all(tmp_path)[0].by_key) == {"a"}


def test_merging_keeps_what_stands(tmp_path: Path) -> None:
    mine, theirs = Journal(tmp_path, STACK), Journal(tmp_path / "shard", STACK)
    mine.add(measurement("a"))
    theirs.add(measurement("a", Rule.RUNS))
    theirs.add(measurement("b"))
    assert merge(tmp_path, [tmp_path / "shard"]) == {mine.path.name: 1}
    found = read_all(tmp_path)[0].by_key
    assert found["a"].passed and set(found) == {"a", "b"}
    with pytest.raises(UsageError, match="No such folder or file"):
        merge(tmp_path, [tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="has no measurements"):
        merge(tmp_path, [tmp_path / "empty"])


def test_a_file_may_be_compressed(tmp_path: Path) -> None:
    theirs = Journal(tmp_path / "shard", STACK)
    theirs.add(measurement("a"))
    raw = gzip.compress(theirs.path.read_bytes())
    (tmp_path / "recorded").write_bytes(raw)
    assert merge(tmp_path, [tmp_path / "recorded"]) == {theirs.path.name: 1}
    (tmp_path / "half.gz").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(StoreError, match="Can't read") as caught:
        merge(tmp_path, [tmp_path / "half.gz"])
    assert "Copy it again" in caught.value.remedy


def test_two_filters_in_one_folder(tmp_path: Path) -> None:
    with (
        locked(tmp_path / FILTER_LOCK),
        pytest.raises(StoreError, match="in use by process"),
        locked(tmp_path / FILTER_LOCK),
    ):
        pass


def test_what_a_worker_finds() -> None:
    failure = from_finding(TaskFinding(rule=Rule.MEMORY, detail="two\nlines"))
    assert failure.scarce and failure.finding.detail == "two lines"


def test_how_a_process_ended_names_the_rule() -> None:
    died = from_fault(Fault(Verdict.OUT_OF_MEMORY, "killed", FaultKind.DIED), Rule.COMPILES)
    assert died.finding.rule is Rule.MEMORY and died.scarce
    late = from_fault(Fault(Verdict.TIMED_OUT, "no answer", FaultKind.DEADLINE), Rule.COMPILES)
    assert late.finding.rule is Rule.COMPILES and late.scarce


@pytest.mark.parametrize(
    ("mine", "yours", "same"),
    [
        (((3.0, 1.0, -2.0),), ((3.0, 1.0, -2.0),), True),
        (((3.0, 1.0, -2.0),), ((3.0, 1.001, -2.0),), True),
        (((3.0, 1.0, -2.0),), ((3.0, 1.1, -2.0),), False),
        (((3.0, 1.0, -2.0),), ((4.0, 1.0, -2.0),), False),
        (((3.0, 1.0),), ((3.0, 1.0), (1.0,)), False),
        (((3.0, float("nan")),), ((3.0, 1.0),), False),
        (((0.0, 0.0),), ((0.0, 0.0),), True),
    ],
)
def test_samples(mine: tuple[tuple[float, ...], ...], yours: tuple[tuple[float, ...], ...], same: bool) -> None:
    assert same_sample(mine, yours) is same


def test_a_run_goes_on_with_what_an_earlier_one_checked(tmp_path: Path) -> None:
    class Minutes(Passes):
        """Each task takes a second to check and one to time, of ten."""

        spent_s = 0

        @property
        def over(self) -> bool:
            return self.spent_s >= 10

        def check_all(self, tasks: Sequence[DatasetTask], *, alone: bool = False) -> Iterator[Checked]:
            for task in tasks:
                if not self.over:
                    self.spent_s += 1
                    yield Checked(task_key=task.task.key, sample=())

        def time_all(self, tasks: Sequence[tuple[DatasetTask, Checked]]) -> Iterator[Measurement]:
            for task, _ in tasks:
                if not self.over:
                    self.spent_s += 1
                    yield measurement(task.task.key)

    write_candidates(tmp_path, {f"t{number}": f"return x + {number}" for number in range(8)})
    tasks, options = read_candidates(tmp_path), FilterOptions.parse({"device": "cpu"})
    found = []
    for _ in range(2):
        journal = Journal(tmp_path, STACK)
        run = _Run(journal, options, lambda _text: None, len(tasks))
        run.batch(Minutes(options, print), tasks)
        found.append((len(journal.checked), len(journal.measured)))
    assert found == [(8, 2), (8, 8)]


def test_what_a_check_may_hold() -> None:
    task = candidate("linear", "return self.linear(x)")
    task = task.model_copy(update={"cost": Cost(flops=1.0, bytes=1.0, predicted_us=1.0, held_bytes=1000)})
    assert need_of(task, Device.CPU) == Need(resting=1000, step=2300)
    assert need_of(task, Device.CUDA).resting == 1000 + 2**30


def test_shards() -> None:
    tasks = [candidate(f"t{i}", "return x", i) for i in range(10)]
    parts = [[t.number for t in tasks if Shard.parse(f"{i}/3").holds(t)] for i in (1, 2, 3)]
    assert sorted(number for part in parts for number in part) == list(range(10))
    for wrong in ("3", "0/2", "3/2", "a/b", "-1/2"):
        with pytest.raises(UsageError, match="No shard"):
            Shard.parse(wrong)


def test_the_funnel_counts_rule_by_rule(tmp_path: Path) -> None:
    tasks = write_candidates(tmp_path, {f"t{i}": f"return x + {i}" for i in range(5)})
    keys = [task.task.key for task in tasks]
    measured = {
        keys[0]: measurement(keys[0]),
        keys[1]: measurement(keys[1], Rule.RUNS),
        keys[2]: measurement(keys[2], Rule.AGREES),
        keys[3]: measurement(keys[3]),
    }
    later = {keys[3]: TaskFinding(rule=Rule.DUPLICATE, detail="of t0")}
    made = funnel(tasks, measured, later)
    stages = {stage.rule: (stage.asked, stage.broke) for stage in made.all.stages}
    assert (made.all.candidates, made.all.unknown, made.all.kept) == (5, 1, 1)
    assert stages[Rule.RUNS] == (4, 1) and stages[Rule.AGREES] == (3, 1) and stages[Rule.DUPLICATE] == (2, 1)
    assert made.by_origin["torch#2"] == made.all
    assert made.examples[Rule.AGREES] == ("t2: why",)
    assert Rule.DUPLICATE not in {stage.rule for stage in funnel(tasks, measured).all.stages}


def test_no_candidates(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no candidates"):
        filter_folder(tmp_path, FilterOptions(device=Device.CPU), lambda _text: None)
    with pytest.raises(UsageError, match="Did you mean 'workers'"):
        FilterOptions.parse({"device": "cpu", "worker": 3})
