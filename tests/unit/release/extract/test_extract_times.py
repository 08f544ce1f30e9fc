"""Time by submodule, and which submodules become tasks."""

from __future__ import annotations

import pytest
from torch import nn

from cuda_agent.core.graph import TensorMeta
from cuda_agent.release.extract.apply import predicted
from cuda_agent.release.extract.choose import choose
from cuda_agent.release.extract.survey import Part
from cuda_agent.release.extract.times import Event, attribute, marked_clock, median_pass


def events(text: str) -> list[Event]:
    """`+0@0 +1@2 -1@5 -0@9`"""
    words = [word.split("@") for word in text.split()]
    return [Event(int(name[1:]), name[0] == "+", int(at)) for name, at in words]


def test_time_belongs_to_the_innermost() -> None:
    times = attribute(events("+0@0 +1@2 +2@3 -2@7 -1@8 +2@10 -2@11 -0@20"))
    assert times.total == {0: 20, 1: 6, 2: 5}
    assert times.own == {0: 13, 1: 2, 2: 5}
    assert times.parents == {1: 0, 2: 1}


def test_a_module_within_itself_counts_once() -> None:
    assert attribute(events("+0@0 +0@1 -0@2 -0@3")).total == {0: 3}


@pytest.mark.parametrize("text", ["+0@0 +1@1 -0@2 -1@3", "+0@0", "-0@0"])
def test_unpaired_events_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="entered"):
        attribute(events(text))


def test_a_pass_that_was_disturbed_doesn_t_count() -> None:
    passes = [events(f"+0@0 +1@1 -1@{1 + step} -0@{2 + step}") for step in (10, 900, 12)]
    times = attribute(median_pass(passes))
    assert times.total == {0: 14, 1: 12}


def test_passes_that_call_something_else_are_left_out() -> None:
    passes = [events("+0@0 -0@5"), events("+0@0 +1@1 -1@2 -0@90")]
    assert attribute(median_pass(passes)).total == {0: 5}


def test_the_gpu_s_clock_stands_still_between_kernels() -> None:
    spans = [("spin_kernel", 0, 1), ("a", 10, 20), ("b", 15, 30), ("x_spin_kernel_y", 40, 41), ("", 50, 60),
             ("spin_kernel", 70, 71)]  # fmt: skip
    assert marked_clock(spans) == [0, 20, 30]


def part(path: str, operators: int, us: float, children: list[int], module: nn.Module, reason: str = "") -> Part:
    meta = TensorMeta(shape=(2, 4), dtype="float32", strides=(4, 1))
    spec = {"dict": {"args": {"list": [{"t": 0}]}, "kwargs": {"dict": {}}}}
    return Part(path, module, 1, operators, spec, (meta,), reason, us, us / 10, children)


def test_the_largest_that_fit_become_tasks_and_never_their_children() -> None:
    parts = [
        part("", 99, 100.0, [1, 4, 6], nn.Sequential()),
        part("a", 50, 60.0, [2, 3], nn.Sequential()),
        part("a.0", 9, 30.0, [], nn.Linear(4, 4)),
        part("a.1", 9, 25.0, [], nn.Linear(4, 4)),
        part("b", 9, 20.0, [5], nn.Sequential(nn.Linear(4, 4))),
        part("b.0", 3, 19.0, [], nn.Linear(4, 4)),
        part("c", 3, 5.0, [], nn.ReLU(), "its argument x is a Cache"),
    ]
    choice = choose(parts, 10)
    assert [(group.kind, group.members, group.us) for group in choice.units] == [
        ("Linear", [2, 3], 55.0),
        ("Sequential", [4], 20.0),
    ]
    left = {group.kind: group.reason for group in choice.left_out}
    assert left == {"ReLU": "its argument x is a Cache", "Sequential": "50 operators, more than --operators 10"}


def test_other_weights_or_other_calls_are_other_tasks() -> None:
    one, other = part("a", 1, 1.0, [], nn.Linear(4, 4)), part("b", 1, 1.0, [], nn.Linear(4, 5))
    assert one.alike != other.alike
    other = part("b", 1, 1.0, [], nn.Linear(4, 4))
    assert one.alike == other.alike
    other.spec = {"dict": {"args": {"list": [{"t": 0}, {"v": True}]}, "kwargs": {"dict": {}}}}
    assert one.alike != other.alike


def test_amdahl() -> None:
    assert predicted([(0.5, 2.0)]) == pytest.approx(4 / 3)
    assert predicted([]) == 1.0
    assert predicted([(1.0, 4.0)]) == pytest.approx(4.0)
