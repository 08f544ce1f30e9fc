"""When a task's answers to other inputs count as null answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from cuda_agent.core.enums import Signal
from cuda_agent.core.errors import TaskError
from cuda_agent.core.records import Task
from cuda_agent.judge.verify.admission import Answers
from cuda_agent.judge.verify.answers import WholeAnswer
from cuda_agent.judge.verify.trials import Secrets


class _Reference:
    """Answers one number: 1 to the inputs that it is asked about again and again, to others what it is told."""

    def __init__(self, others: Sequence[float]) -> None:
        self._others = list(others)
        self._values: dict[int, float] = {}

    def draw_weights(self, seed: int | None, *, scaled: bool | None = None) -> None:
        pass

    def draw_inputs(self, seed: int) -> Any:
        if seed not in self._values:
            # The second set is the one that is asked about.
            self._values[seed] = 1.0 if len(self._values) == 1 else self._others.pop(0)
        self._now = seed
        return seed

    def answer(self, spec: Any, rng: int, *, oracle: bool = True, twin: int | None = None) -> WholeAnswer:
        value = torch.tensor([self._values[spec]])
        return WholeAnswer({}, [value], [value], [value.double()], "float64")


_TASK = Task(name="a_task", source="")


def _check(reference: _Reference) -> None:
    Answers(_TASK, reference, Secrets(1), 1e-6).check_nulls()


def test_two_draws_may_happen_to_be_alike() -> None:
    _check(_Reference([0.5]))
    _check(_Reference([1.0, 0.5]))
    _check(_Reference([1.0, 1.0, 1.0, 1.0, 2.0]))


def test_five_that_are_alike_pass_for_the_answer() -> None:
    with pytest.raises(TaskError, match="a constant would pass"):
        _check(_Reference([1.0] * 20 + [2.0]))


def test_scaled_weights_tell_what_the_own_ones_hide() -> None:
    class Fading(_Reference):
        def draw_weights(self, seed: int | None, *, scaled: bool | None = None) -> None:
            if scaled:
                self._values, self._others = {}, [2.0, 0.5]

    assert Answers(_TASK, Fading([1.0] * 9), Secrets(1), 1e-6).signal() == (Signal.SCALED, "")


def test_what_only_the_bound_of_timed_outputs_hides_counts_where_scaling_does_not_help() -> None:
    near = _Reference([1.03] * 20)
    assert Answers(Task(name="a_task", source="", atol=0.1), near, Secrets(1), 1e-2).signal() == (Signal.OWN, "")


def test_zeros_pass_once() -> None:
    class Zeros(_Reference):
        def answer(self, spec: Any, rng: int, *, oracle: bool = True, twin: int | None = None) -> WholeAnswer:
            self._values = dict.fromkeys(self._values, 0.0)
            return super().answer(spec, rng)

    with pytest.raises(TaskError, match="all zeros would pass"):
        _check(Zeros([3.0] * 9))
