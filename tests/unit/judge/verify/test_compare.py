"""Both bounds, worst blocks, values that aren't finite, integers, structure."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.records import OutputErrors, Task, TrialReport
from cuda_agent.judge.verify.answers import WholeAnswer, parts_of
from cuda_agent.judge.verify.compare import (
    BLOCK,
    FLOOR,
    FLOOR_TF32,
    all_finite,
    error_floor,
    first_failures,
    measure,
    rule,
    same_bytes,
    same_structure,
)
from cuda_agent.judge.verify.eager_bounds import eager_bounds
from cuda_agent.judge.verify.measured import Errors, Measured, Ruling


def compared(candidate: Any, eager: Any, oracle: Any = None, policy: Any = None, tolerance: float = 1e-2) -> Measured:
    oracle = eager.double() if oracle is None else oracle
    return measure(candidate, eager, eager if policy is None else policy, oracle, atol=tolerance, rtol=tolerance)


def ruled(candidate: Any, eager: Any, **named: Any) -> Ruling:
    return rule(compared(candidate, eager, **named), FLOOR)


@pytest.fixture
def values() -> Any:
    return torch.randn(3 * BLOCK + 17, generator=torch.Generator().manual_seed(1))


def test_the_same_values_pass(values: Any) -> None:
    ruling = ruled(values.clone(), values)
    assert ruling.passed
    assert ruling.error == 0


def test_rounding_passes_and_half_precision_does_not(values: Any) -> None:
    assert ruled(values * (1 + 1e-7), values).passed
    ruling = ruled(values.half().float(), values)
    assert not ruling.passed
    assert "relative error" in ruling.reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 3e2])
def test_an_answer_of_sixteen_bits_may_be_rounded_and_no_more(values: Any, dtype: torch.dtype, scale: float) -> None:
    oracle = (values * scale).double()
    eager = oracle.to(dtype)
    noise = torch.randn(oracle.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    assert ruled((oracle + 1e-4 * scale * noise).to(dtype), eager, oracle=oracle).passed
    assert not ruled((oracle + 3e-2 * scale * noise).to(dtype), eager, oracle=oracle, tolerance=1e6).passed


def test_denormals_of_half_precision_are_as_far_apart_as_they_are(values: Any) -> None:
    oracle = (values * 1e-6).double()
    eager = oracle.half()
    off = torch.where(torch.rand(oracle.shape) < 0.02, 6.0e-8, 0.0)
    assert ruled((oracle + off).half(), eager, oracle=oracle).passed
    assert not ruled(torch.zeros_like(eager), eager, oracle=oracle, tolerance=1e6).passed


def test_what_is_too_large_for_its_square_is_not_small() -> None:
    values = torch.full((2 * BLOCK,), 1e200, dtype=torch.float64)
    wrong = values.clone()
    wrong[3] = -1e200
    assert ruled(values.clone(), values).passed
    assert not ruled(wrong, values, tolerance=1e300).passed


def test_one_bad_block_in_a_large_output_is_seen() -> None:
    values = torch.randn(4096 * 256, generator=torch.Generator().manual_seed(2))
    wrong = values.clone()
    wrong[:BLOCK] *= 1 + 1e-4
    measured = compared(wrong, values)
    assert measured.candidate.block == pytest.approx(1e-4, rel=0.01)
    assert measured.candidate.whole < 1e-5
    assert not rule(measured, FLOOR).passed


def test_a_block_of_small_values_has_its_own_scale(values: Any) -> None:
    values[:BLOCK] *= 1e-6
    wrong = values.clone()
    wrong[:BLOCK] = 0
    ruling = ruled(wrong, values)
    assert not ruling.passed
    assert "worst block" in ruling.reason


def test_beyond_the_published_bound(values: Any) -> None:
    wrong = values.clone()
    wrong[5] += 0.5
    measured = compared(wrong, values)
    assert measured.beyond > measured.excuse
    assert "atol" in rule(measured, 10.0).reason


def test_what_eager_itself_misses_by_a_quarter_is_excused() -> None:
    oracle = torch.full((BLOCK,), 100.0, dtype=torch.float64)
    eager = (oracle + 3.0).to(torch.bfloat16)
    candidate = oracle.to(torch.bfloat16)
    assert rule(compared(candidate, eager, oracle), FLOOR).passed


def test_places_without_an_oracle_have_the_bounds_of_plain_trials() -> None:
    """The oracle spreads a NaN over more rows than eager does, as with a causal mask."""
    draw = torch.Generator().manual_seed(3)

    def noisy(values: Any) -> Any:
        return values * (1 + 4e-3 * torch.randn(values.shape, generator=draw))

    oracle = 20 * torch.randn(40, BLOCK, generator=draw, dtype=torch.float64)
    eager, candidate = noisy(oracle).float(), noisy(oracle).float()
    plain = compared(candidate, eager, oracle=oracle)
    assert rule(plain, FLOOR).passed and plain.apart > 0.01
    ruling = rule(plain, FLOOR)
    errors = OutputErrors(
        candidate_error=ruling.error, eager_error=ruling.eager_error, max_abs_error=plain.max_abs_error,
        apart=plain.apart,
    )  # fmt: skip
    (bounds,) = eager_bounds(
        Task(name="toy", source="x = 1"), [TrialReport(kind="fresh", passed=True, outputs=(errors,))], FLOOR
    )
    for spread in (20, 40):
        unknown = oracle.clone()
        unknown[:spread] = math.nan
        own = noisy(oracle).float()
        found = compared(own, eager, oracle=unknown)
        assert found.alone.elements == spread * BLOCK
        assert not rule(found, FLOOR).passed, "without plain trials the published bound holds"
        assert rule(found, FLOOR, bounds=bounds).passed
        swapped, rough, spoilt = own.clone(), own.clone(), own.clone()
        rough[:20] *= 1.05
        swapped[3], spoilt[7, 5] = own[4], own[7, 5] + 50.0
        for wrong in (swapped, rough, spoilt):
            ruling = rule(compared(wrong, eager, oracle=unknown), FLOOR, bounds=bounds)
            assert not ruling.passed and "only the reference is finite" in ruling.reason


def test_nan_and_infinity_must_match_in_place(values: Any) -> None:
    values[3], values[4], values[5] = math.nan, math.inf, -math.inf
    assert ruled(values.clone(), values).passed
    for index, other in ((3, 1.0), (4, -math.inf), (5, math.nan), (6, math.nan), (6, math.inf)):
        wrong = values.clone()
        wrong[index] = other
        assert not ruled(wrong, values).passed, (index, other)


def test_flushed_denormals_are_no_error() -> None:
    values = torch.full((BLOCK,), 1e-40)
    assert ruled(torch.zeros_like(values), values, tolerance=0.0).passed is False
    assert ruled(torch.zeros_like(values), values).passed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_zeros_against_zeros_and_empty(dtype: torch.dtype) -> None:
    zeros, none = torch.zeros(100, dtype=dtype), torch.zeros(0, dtype=dtype)
    assert ruled(zeros.clone(), zeros).passed
    assert ruled(none.clone(), none).passed
    assert not ruled(zeros + 1e-3, zeros).passed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_block_of_zeros_hides_no_other(values: Any, dtype: torch.dtype) -> None:
    values = values.to(dtype)
    values[:BLOCK] = 0
    wrong = values.clone()
    wrong[BLOCK : BLOCK + 9] *= 1 + 1e-2
    measured = compared(wrong, values)
    assert measured.candidate.block == pytest.approx(1e-2 * math.sqrt(9 / BLOCK), rel=0.9)
    assert not rule(measured, FLOOR).passed


def test_integers_and_booleans_must_be_equal() -> None:
    indices = torch.arange(10)
    assert ruled(indices.clone(), indices).passed
    assert "1 of 10" in ruled(indices + (indices == 3), indices).reason
    flags = indices > 4
    assert ruled(flags.clone(), flags).passed
    assert not ruled(~flags, flags).passed


def test_a_small_output_takes_the_pooled_error_of_eager() -> None:
    oracle = torch.tensor([1e-3], dtype=torch.float64)
    eager, candidate = torch.tensor([1e-3]), torch.tensor([1e-3 + 1e-7])
    measured = compared(candidate, eager, oracle)
    assert not rule(measured, FLOOR).passed
    assert rule(measured, FLOOR, Errors(1e-4, 1e-4)).passed


def test_floors() -> None:
    assert error_floor(Precision.TF32, Device.CPU, 1, True) == FLOOR
    assert error_floor(Precision.TF32, Device.CUDA, 1, True) == FLOOR_TF32
    assert error_floor(Precision.TF32, Device.CUDA, 1, False) == FLOOR
    assert error_floor(Precision.FP32, Device.CUDA, 1, True) == FLOOR
    assert error_floor(Precision.FP32, Device.CPU, 4096, True) == pytest.approx(64 * 1.1920929e-07)


def test_structure() -> None:
    def same(a: object, b: object) -> bool:
        return same_structure(a, b, atol=1e-2, rtol=1e-2)

    pair = {"tuple": [{"t": 0}, {"v": 2}]}
    assert same({"list": [{"t": 0}, {"v": 2}]}, pair)
    assert same({"tuple": [{"t": 0}, {"v": 2}], "note": "Result"}, pair)
    assert not same({"tuple": [{"t": 0}]}, pair)
    assert not same({"t": 0}, pair)
    assert not same({"tuple": [{"t": 0}, {"v": 3}]}, pair)
    assert same({"v": 1.001}, {"v": 1.0})
    assert not same({"v": "1"}, {"v": 1.0})
    assert same({"dict": {"a": {"t": 0}}}, {"dict": {"a": {"t": 0}}})
    assert not same({"dict": {"b": {"t": 0}}}, {"dict": {"a": {"t": 0}}})
    assert not same(None, pair)


def test_a_first_part_convicts_and_never_more_than_the_whole_does() -> None:
    generator = torch.Generator().manual_seed(3)
    eager = torch.randn(1 << 21, generator=generator)
    oracle = eager.double() * (1 + 1e-7)
    own = measure(eager, eager, eager, oracle, atol=1e-2, rtol=1e-2)
    late = eager.clone()
    late[-1] += 1.0
    loud = eager.clone()
    loud[7] += 1.0
    for candidate, at_once in [
        (eager, False), (eager * (1 + 1e-6), False), (late, False), (loud, True), (torch.zeros_like(eager), True),
        (eager * 1.001, True), (torch.full_like(eager, math.nan), True),
    ]:  # fmt: skip
        mine, answer = {"c": parts_of([candidate])}, WholeAnswer({}, [eager], [eager], [oracle], "float64")
        reason = first_failures(answer, mine, [own], FLOOR, atol=1e-2, rtol=1e-2).get("c", "")
        whole = rule(measure(candidate, eager, eager, oracle, atol=1e-2, rtol=1e-2), FLOOR)
        assert bool(reason) is at_once and (not reason or not whole.passed)
    few = eager[:100]
    answer, own = WholeAnswer({}, [few], [few], [few.double()], "float64"), compared(few, few)
    assert not first_failures(answer, {"c": parts_of([few * 0])}, [own], FLOOR, atol=1e-2, rtol=1e-2), "looked at whole"


def test_one_byte_that_differs_and_one_value_that_is_not_finite() -> None:
    mine = torch.arange(3 * (1 << 20) + 5).to(torch.uint8)
    for place in (0, 1 << 20, mine.numel() - 1):
        other = mine.clone()
        assert same_bytes(mine, other)
        other[place] += 1
        assert not same_bytes(mine, other)
    values = torch.zeros(1 << 20)
    others = torch.ones(3, dtype=torch.int64)
    answer = WholeAnswer({}, [values, others], [], [], "")
    assert all_finite(answer)
    for wrong in (math.nan, math.inf):
        values[-1] = wrong
        assert not all_finite(answer)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", ["candidate", "oracle", "policy"])
def test_no_piece_hides_what_is_not_finite(wrong: float, which: str) -> None:
    reference = torch.ones(3 << 19)
    tensors = {name: reference.clone() for name in ("candidate", "policy", "oracle")}
    tensors["oracle"] = tensors["oracle"].double()
    tensors[which][(1 << 19) + 7] = wrong
    found = measure(tensors["candidate"], reference, tensors["policy"], tensors["oracle"], atol=1e-2, rtol=1e-2)
    assert rule(found, 1e-6).passed is (which != "candidate")
