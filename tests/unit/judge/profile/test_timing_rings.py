"""How rings are sized, and what the check of timed outputs sees."""

from __future__ import annotations

import random

import pytest
import torch

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import TensorMeta
from cuda_agent.core.records import OutputErrors, Task, TrialReport
from cuda_agent.judge.profile.rings import MAX_SLOTS, Ring, output_places, plan_ring, timing_bytes
from cuda_agent.judge.profile.schedule import affordable
from cuda_agent.judge.profile.timedcheck import WHOLE, OutputCheck
from cuda_agent.judge.verify.eager_bounds import EagerBounds, eager_bounds
from cuda_agent.judge.verify.reference import allocate
from cuda_agent.workers.buffers import contiguous

TASK = Task(name="toy", source="x = 1")

MIB, GIB = 1 << 20, 1 << 30
H200 = {"l2_bytes": 60 * MIB, "free_bytes": 130 << 30, "card_bytes": 140 << 30}


def test_small_tasks_flush() -> None:
    plan = plan_ring(Device.CUDA, 4096, 4096, **H200)
    assert plan.slots == MAX_SLOTS == plan.calls(5e-6)
    assert plan.flush_bytes(plan.slots) == 180 * MIB


def test_middling_tasks_rotate() -> None:
    plan = plan_ring(Device.CUDA, 20 * MIB, 20 * MIB, **H200)
    calls = plan.calls(20e-3)
    assert calls == 5 and plan.flush_bytes(calls) == 0
    assert plan.flush_bytes(4) == 180 * MIB, "four calls don't push the cache out"


def test_short_calls_make_long_bursts() -> None:
    plan = plan_ring(Device.CUDA, 128 * MIB, 64 * MIB, **H200)
    assert plan.calls(50e-6) == plan.slots > 20
    assert plan.calls(2e-3) == 5


@pytest.mark.parametrize(
    ("calls", "made"),
    [(1e6, 96), (28 * 40, 40), (28 * 3, 5), (5 * 4, 4), (0.1, 1)],
    ids=["plenty", "planned rounds", "least calls", "least rounds", "nothing"],
)
def test_bursts_leave_time_for_rounds(calls: float, made: int) -> None:
    assert affordable(96, calls) == made


def test_huge_tasks_fit() -> None:
    plan = plan_ring(Device.CUDA, 6400 * MIB, 6400 * MIB, **H200)
    assert plan.slots == 1 and plan.flush_bytes(1) == 0 and not plan.is_kept
    assert plan_ring(Device.CUDA, 60 << 30, 60 << 30, **H200).slots == 1, "the allocation will say that it doesn't fit"


def test_a_timing_needs_at_most_a_quarter_of_the_device_for_rings_that_are_kept() -> None:
    kept, card = [size for size in range(1, 12) if plan_ring(Device.CUDA, size << 30, size << 30, **H200).is_kept], 140
    assert kept == [1, 2]
    assert timing_bytes(2 << 30, 2 << 30, 0, card << 30) == 24 << 30
    assert timing_bytes(6 << 30, 6 << 30, 0, card << 30) == 42 << 30


def test_what_calls_hold_besides_is_left_to_them() -> None:
    busy, rest = H200 | {"free_bytes": 40 * GIB}, 7 * GIB
    usual = plan_ring(Device.CUDA, GIB // 2, GIB // 2, **busy)
    assert plan_ring(Device.CUDA, GIB // 2, GIB // 2, **busy, rest_bytes=GIB // 2).slots == usual.slots
    spared = plan_ring(Device.CUDA, GIB // 2, GIB // 2, **busy, rest_bytes=rest)
    assert 1 < spared.slots < usual.slots and 9 * spared.slots * GIB // 2 <= (40 * GIB - 3 * rest) // 2
    assert not plan_ring(Device.CUDA, GIB, GIB, **busy, rest_bytes=2 * rest).is_kept


def test_cpu_takes_few() -> None:
    assert plan_ring(Device.CPU, 4096, 4096, 0, 16 << 30, 24 << 30).slots == MAX_SLOTS
    big = plan_ring(Device.CPU, 64 * MIB, 64 * MIB, 0, 16 << 30, 24 << 30)
    assert big.slots * 7 * 64 * MIB <= 1 << 30 and big.flush_bytes(1) == 0


def check(error: float = 1e-5, absolute: float = 0.0) -> OutputCheck:
    return OutputCheck([EagerBounds(atol=1e-2, rtol=1e-2, floor=error, absolute=absolute)], random.Random(1))


def one_round(found: OutputCheck, mine: list[torch.Tensor], eager: list[torch.Tensor]) -> str | None:
    """One output, whose slots lie one after the other."""
    size = eager[0].numel()
    found.draw([[slot * size for slot in range(len(eager))]], [size], "cpu")
    ours, theirs = (torch.cat([t.reshape(-1) for t in tensors]) for tensors in (mine, eager))
    return found.compare(found.sample(lambda _, at: ours[at]), found.sample(lambda _, at: theirs[at]))


def test_right_outputs_pass() -> None:
    found = check()
    for _ in range(3):
        eager = [torch.rand(300, 100), torch.rand(300, 100)]
        eager[0][0, 0] = float("inf")
        assert one_round(found, [t * (1 + 1e-6) for t in eager], eager) is None
    assert found.verdict() is None and found.checked == 6


def test_large_outputs_are_sampled_at_the_same_places() -> None:
    found = check()
    eager = torch.rand(WHOLE * 4)
    assert one_round(found, [eager.clone()], [eager]) is None
    assert one_round(found, [eager.roll(1)], [eager]) is not None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: torch.zeros_like(t),
        lambda t: torch.full_like(t, float("nan")),
        lambda t: t + 0.5,
        lambda t: t.bfloat16().float(),
    ],
)
def test_wrong_outputs_fail(spoil: object) -> None:
    found, eager = check(), torch.rand(1000) + 0.5
    assert one_round(found, [spoil(eager)], [eager]) is not None  # type: ignore[operator]


def test_small_steady_errors_fail_in_the_end() -> None:
    found = check(error=1e-5)
    for _ in range(5):
        eager = torch.rand(1000) + 0.5
        assert one_round(found, [eager * (1 + 5e-5)], [eager]) is None
    assert "allow" in (found.verdict() or "")


def test_verified_errors_excuse() -> None:
    def excused(share: float) -> OutputCheck:
        errors = OutputErrors(candidate_error=1e-3, eager_error=1e-3, max_abs_error=0.5, apart=share)
        bounds = eager_bounds(TASK, [TrialReport(kind="fresh", passed=True, outputs=(errors,))], floor=2e-6)
        assert bounds[0].relative() == pytest.approx(8e-3) and bounds[0].absolute == 2.0
        return OutputCheck(bounds, random.Random(2))

    eager = torch.randn(10000) * 100
    found = excused(0.02)
    assert one_round(found, [eager + 0.1], [eager]) is None and found.verdict() is None
    # A single place beyond the tolerance in verification excuses few others.
    found = excused(1e-4)
    spoiled = eager.clone()
    spoiled[7] += 0.4
    assert one_round(found, [spoiled], [eager]) is None
    assert "sampled values differ" in (one_round(found, [eager + 0.1], [eager]) or "")


def test_each_output_has_its_own_bounds() -> None:
    outputs = (OutputErrors(candidate_error=1e-2, eager_error=1e-2, max_abs_error=1.0, apart=0.1), OutputErrors())
    found = OutputCheck(
        eager_bounds(TASK, [TrialReport(kind="fresh", passed=True, outputs=outputs)], floor=2e-6), random.Random(1)
    )
    eager = torch.rand(1000) + 0.5
    rough = eager * (1 + 1e-3 * torch.randn(1000, generator=torch.Generator().manual_seed(1)))
    found.draw([[0], [0]], [1000, 1000], "cpu")
    assert found.compare([rough.double(), eager.double()], [eager.double()] * 2) is None
    assert "output 1" in (found.compare([rough.double()] * 2, [eager.double()] * 2) or found.verdict() or "")


def test_integers() -> None:
    eager = torch.arange(4000)
    tie = eager.clone()
    tie[5] += 1
    assert one_round(check(), [tie], [eager]) is None
    assert one_round(check(), [eager + 1], [eager]) is not None
    assert one_round(check(), [torch.tensor([1])], [torch.tensor([2])]) is not None


def test_integers_may_differ_as_often_as_verified_ones() -> None:
    eager = torch.arange(4096)

    def rounds(different: int, ties: float, count: int = 13) -> str | None:
        trial = TrialReport(kind="fresh", passed=True, outputs=(OutputErrors(apart=ties),))
        bounds = eager_bounds(TASK, [trial], floor=2e-6)
        found = OutputCheck(bounds, random.Random(3))
        spoilt = torch.where(eager < different, eager + 1, eager)
        return next(filter(None, (one_round(found, [spoilt], [eager]) for _ in range(count))), None)

    # 147 of 262,144 in verification, as a router's under TF32: 2.3 of 4,096 in the mean, some rounds more.
    assert rounds(2, 147 / 262144) is None and rounds(9, 147 / 262144, count=1) is None
    assert rounds(30, 147 / 262144, count=1) is not None, "in one round"
    assert rounds(14, 147 / 262144) is not None, "in all of them together"
    # One of a million, such as nobody knows of an output in which verification found none.
    assert rounds(1, 1e-6, count=1) is None and "2 of 8192" in (rounds(1, 1e-6) or ""), "rare values left out"


@pytest.mark.parametrize("dtype", ["bool", "uint16", "int64", "bfloat16", "float8_e4m3fn", "float64"])
def test_every_type_is_taken_from_a_ring(dtype: str) -> None:
    """Two outputs and three slots; positions as they are drawn for a round."""
    metas = [contiguous(TensorMeta(shape=(5, 7), dtype=name, strides=(7, 1))) for name in ("float32", dtype)]
    places = allocate("outputs", metas, Device.CPU, 3)
    values = torch.arange(3 * 35).reshape(3, 5, 7) % 2
    for slot in range(3):
        for tensor in places.arena.tensors(places.layout.slots[2 * slot : 2 * slot + 2]):
            tensor.copy_(values[slot].to(tensor.dtype))
    ring = object.__new__(Ring)
    ring._outputs, ring._bits = places, {}
    found = check()
    found.draw(*output_places(metas, Device.CPU, 3), "cpu")
    for sample in found.sample(ring.take):
        assert torch.equal(sample.to(torch.int64), values.reshape(-1))
    ring._bits.clear()
    places.arena.close()
