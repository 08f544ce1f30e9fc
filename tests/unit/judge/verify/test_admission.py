"""When a task's answers to other inputs count as null answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from cuda_agent.core.errors import TaskError
from cuda_agent.core.records import Task
from cuda_agent.judge.verify.admission import Answers
from cuda_agent.judge.verify.reference import Answer
from cuda_agent.judge.verify.trials import Secrets


class _Reference:
    """Answers one number: 1 to the inputs that it is asked about again and again, to others what it is told."""

    def __init__(self, others: Sequence[float]) -> None:
        self._others = list(others)
        self._values: dict[int, float] = {}

    def draw_weights(self, seed: int | None) -> None:
        pass

    def draw_inputs(self, seed: int) -> Any:
        if seed not in self._values:
            # The second set is the one that is asked about.
            self._values[seed] = 1.0 if len(self._values) == 1 else self._others.pop(0)
        self._now = seed
        return seed

    def answer(self, spec: Any, rng: int, *, oracle: bool = True, twin: int | None = None) -> Answer:
        value = torch.tensor([self._values[spec]])
        return Answer({}, [value], [value], [value.double()], "float64")


def _check(reference: _Reference) -> None:
    Answers(Task(name="a_task", source=""), reference, Secrets(1), 1e-6).check_nulls()


def test_two_draws_may_happen_to_be_alike() -> None:
    _check(_Reference([0.5]))
    _check(_Reference([1.0, 0.5]))
    _check(_Reference([1.0, 1.0, 1.0, 1.0, 2.0]))


def test_five_that_are_alike_pass_for_the_answer() -> None:
    with pytest.raises(TaskError, match="a constant would pass"):
        _check(_Reference([1.0, 1.0, 1.0, 1.0, 1.0, 2.0]))


def test_zeros_pass_once() -> None:
    class Zeros(_Reference):
        def answer(self, spec: Any, rng: int, *, oracle: bool = True, twin: int | None = None) -> Answer:
            self._values = dict.fromkeys(self._values, 0.0)
            return super().answer(spec, rng)

    with pytest.raises(TaskError, match="all zeros would pass"):
        _check(Zeros([3.0]))
