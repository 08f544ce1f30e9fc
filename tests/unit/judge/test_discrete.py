"""Integers: equal, but where PyTorch's own answers tie within rounding; and never more than that."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuda_agent.judge.compare import FLOOR, measure, rule
from cuda_agent.judge.discrete import TIES
from cuda_agent.judge.measured import Errors, Measured, Ruling, pool
from cuda_agent.judge.onepass import BLOCK

ELEMENTS = 64 * BLOCK + 33
SPREAD = torch.arange(0, ELEMENTS, 4001)


def places(generator: int = 0) -> Any:
    """Of the largest of 32 scores."""
    return torch.randint(32, (ELEMENTS,), generator=torch.Generator().manual_seed(generator))


def flipped(values: Any, where: Any, by: int = 1) -> Any:
    found = values.clone()
    found[where] = (found[where] + by) % 32
    return found


def compared(candidate: Any, eager: Any, policy: Any = None, oracle: Any = None) -> Measured:
    policy, oracle = (eager if other is None else other for other in (policy, oracle))
    return measure(candidate, eager, policy, oracle, atol=1e-2, rtol=1e-2)


def ruled(candidate: Any, eager: Any, policy: Any = None, oracle: Any = None, pooled: Errors | None = None) -> Ruling:
    return rule(compared(candidate, eager, policy, oracle), FLOOR, pooled)


def test_where_all_of_pytorchs_answers_agree_one_other_value_fails() -> None:
    eager = places()
    assert ruled(eager.clone(), eager).passed
    ruling = ruled(flipped(eager, 7), eager)
    assert not ruling.passed and f"1 of {ELEMENTS} values of type int64 differ" in ruling.reason


def test_values_that_tie_may_fall_either_way() -> None:
    eager = places()
    policy, candidate = flipped(eager, SPREAD), flipped(eager, SPREAD[:5] + 1)
    ruling = ruled(candidate, eager, policy)
    assert ruling.passed
    # What is no error of floating point must not widen the bounds of timed outputs.
    assert (ruling.error, ruling.eager_error) == (0.0, 0.0)
    assert compared(candidate, eager, policy).max_abs_error == 0


def test_the_oracles_own_value_is_no_difference() -> None:
    eager = places()
    oracle = flipped(eager, 7)
    assert ruled(oracle.clone(), eager, oracle=oracle).passed
    assert ruled(oracle.clone(), eager, oracle=oracle).error == 0


def test_no_more_than_four_times_as_many_as_pytorchs_own() -> None:
    eager = places()
    policy = flipped(eager, SPREAD[:4])
    assert ruled(flipped(eager, SPREAD[:16] + 1), eager, policy).passed
    assert not ruled(flipped(eager, SPREAD[:17] + 1), eager, policy).passed


def test_no_more_than_one_in_a_thousand_however_unsure_pytorch_is() -> None:
    eager = places()
    policy = flipped(eager, torch.arange(0, ELEMENTS, 10))
    few, many = int(TIES * ELEMENTS), int(TIES * ELEMENTS) + 1
    assert ruled(flipped(eager, torch.arange(few) * 900 + 1), eager, policy).passed
    measured = compared(flipped(eager, torch.arange(many) * 900 + 1), eager, policy)
    assert measured.failure and not rule(measured, FLOOR).passed


def test_a_block_that_was_never_written_is_seen() -> None:
    eager = places()
    policy = flipped(eager, SPREAD)
    # 60 of 262,177, all of them side by side.
    assert not ruled(flipped(eager, torch.arange(60)), eager, policy).passed
    assert not ruled(flipped(eager, torch.arange(ELEMENTS - 30, ELEMENTS)), eager, policy).passed, (
        "the last, shorter one"
    )


def test_what_is_beyond_the_range_fails_at_once() -> None:
    eager = places()
    policy = flipped(eager, SPREAD)
    for value in (32, -1, 1 << 40):
        wrong = eager.clone()
        wrong[5] = value
        measured = compared(wrong, eager, policy)
        assert "range" in measured.failure and not rule(measured, FLOOR).passed


def test_ties_of_other_trials_count() -> None:
    """In float32 a place or two of a large output flip now and then: in this trial of the candidate, in that of
    eager."""
    eager = places()
    candidate = flipped(eager, 7)
    assert not ruled(candidate, eager).passed
    other = places(1)
    pooled = pool([compared(eager, eager), compared(other, other, oracle=flipped(other, 4100))])
    assert ruled(candidate, eager, pooled=pooled).passed


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_every_type(dtype: torch.dtype) -> None:
    eager = (places() % 2).to(dtype)
    policy, candidate = eager.clone(), eager.clone()
    for tensor, where in ((policy, SPREAD), (candidate, SPREAD[:3] + 1)):
        tensor[where] = tensor[where].logical_not().to(dtype)
    assert ruled(candidate, eager, policy).passed
    assert not ruled(candidate, eager).passed
    assert ruled(eager.clone(), eager, policy).passed


def test_complex_numbers_and_nothing_at_all() -> None:
    values = torch.complex(torch.arange(8.0), torch.ones(8))
    assert ruled(values.clone(), values).passed
    assert not ruled(values + 1, values).passed
    none = torch.zeros(0, dtype=torch.int64)
    assert ruled(none, none).passed
    assert ruled(torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)).passed
    assert not ruled(torch.ones((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)).passed
