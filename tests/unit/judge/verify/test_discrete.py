"""Integers: equal, but where PyTorch's own answers tie within rounding; and never more than that."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuda_agent.judge.verify.compare import FLOOR, measure, rule
from cuda_agent.judge.verify.discrete import TIES, far_apart
from cuda_agent.judge.verify.measured import BLOCK, Errors, Measured, Ruling, pool

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


@pytest.mark.parametrize("whose", ["oracle", "policy"])
def test_a_value_of_pytorchs_own_is_no_difference(whose: str) -> None:
    eager = places()
    other = flipped(eager, 7)
    ruling = ruled(other.clone(), eager, **{whose: other})
    assert ruling.passed and ruling.error == 0


def test_timed_outputs_are_held_against_eagers_so_they_must_not_be_far_apart() -> None:
    eager = places()
    near, far = (flipped(eager, torch.arange(0, ELEMENTS, step)) for step in (40, 10))
    assert compared(near, eager, oracle=near).apart == pytest.approx(1 / 40, rel=0.01)
    assert not far_apart(compared(near, eager, oracle=near)) and not far_apart(compared(eager, eager, oracle=far))
    assert "from eager's" in far_apart(compared(far, eager, oracle=far))


def test_no_more_than_four_times_as_many_as_pytorchs_own() -> None:
    eager = places()
    policy = flipped(eager, SPREAD[:4])
    assert ruled(flipped(eager, SPREAD[:16] + 1), eager, policy).passed
    assert not ruled(flipped(eager, SPREAD[:17] + 1), eager, policy).passed


def test_no_more_than_one_in_a_thousand_however_unsure_pytorch_is() -> None:
    eager = places().clamp_min(1)
    policy = flipped(eager, torch.arange(0, ELEMENTS, 10)).clamp_min(1)
    few, many = int(TIES * ELEMENTS * 0.93), int(TIES * ELEMENTS) + 1
    assert ruled(flipped(eager, torch.arange(few) * 900 + 1).clamp_min(1), eager, policy).passed
    measured = compared(flipped(eager, torch.arange(many) * 900 + 1).clamp_min(1), eager, policy)
    # Verification stops then.
    assert measured.beyond > measured.excuse and not rule(measured, FLOOR).passed


def test_rows_of_a_one_hot_output_can_not_be_left_out() -> None:
    """A row that is missing is one value of a thousand; PyTorch's own ties are two in a row."""
    rows, classes = 512, 1024
    largest = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(2))
    ties = torch.arange(0, rows, 60)
    other = largest.clone()
    other[ties] = (largest[ties] + 1) % classes
    eager, policy = (torch.nn.functional.one_hot(places, classes) for places in (largest, other))
    assert ruled(policy.clone(), eager, policy).passed
    for missing in (1, 30, rows):
        wrong = eager.clone()
        wrong[rows - missing :] = 0
        assert not ruled(wrong, eager, policy, pooled=Errors(0.01, 0.01)).passed


@pytest.mark.parametrize("rare", [False, True])
def test_no_constant_passes_for_a_mask_that_says_little(rare: bool) -> None:
    eager = torch.full((ELEMENTS,), not rare)
    eager[SPREAD[:7]] = rare
    policy = eager.clone()
    policy[SPREAD[:12]] = rare
    assert not ruled(torch.full_like(eager, not rare), eager, policy, pooled=Errors(0.01, 0.01)).passed
    assert ruled(policy.clone(), eager, policy).passed


def test_a_block_that_was_never_written_is_seen() -> None:
    eager = places()
    policy = flipped(eager, SPREAD)
    # 60 of 262,177, all of them side by side.
    ruling = ruled(flipped(eager, torch.arange(1, 61)), eager, policy)
    assert not ruling.passed and "60 of them in one block of 4096" in ruling.reason and ruling.error > ruling.budget
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


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_large_unsigned_ones_must_be_equal(dtype: torch.dtype) -> None:
    eager = places().to(dtype)
    assert ruled(eager.clone(), eager).passed
    wrong = eager.clone()
    wrong[3:4] = torch.tensor([77], dtype=dtype)
    assert f"1 of {ELEMENTS}" in ruled(wrong, eager, wrong).reason


def test_complex_numbers_and_nothing_at_all() -> None:
    values = torch.complex(torch.arange(8.0), torch.ones(8))
    assert ruled(values.clone(), values).passed
    assert not ruled(values + 1, values).passed
    assert "1 of 8 values" in ruled(values + (values.real == 3), values).reason
    none = torch.zeros(0, dtype=torch.int64)
    assert ruled(none, none).passed
    assert ruled(torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)).passed
    assert not ruled(torch.ones((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)).passed
