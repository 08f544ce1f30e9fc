"""Variants keep what a task promises in every draw, and say what they left alone."""

import math

import pytest
import torch

from cuda_agent.workers.inside.task.variants import KINDS, facts, properties, usual_kinds, vary


def names(tensor):
    return {name for name, _ in facts(tensor)}


def draws(make, count=3):
    result = []
    for seed in range(count):
        torch.manual_seed(seed)
        result.append(make())
    return result


def variant(kind, tensors, kept, seed):
    """Whether it changed, the tensors then, and the reasons."""
    changed = [tensor.clone() for tensor in tensors]
    made = vary(kind, changed, kept, seed, lambda: tensors)
    return made.is_changed, changed, made.reasons


def kept_names(make):
    return [{name for name, _ in kept} for kept in properties(draws(make))]


def test_facts():
    assert {"in_unit", "non_negative", "in_signed_unit", "finite"} <= names(torch.rand(4, 8))
    assert "rows_sum_to_one" in names(torch.rand(4, 8).softmax(-1))
    assert "rows_sum_to_one" in names(torch.rand(4, 8).softmax(-1).bfloat16())
    assert "sorted" in names(torch.arange(8)) and "sorted" not in names(torch.tensor([3, 1, 2]))
    assert "symmetric" in names(torch.eye(4)) and "binary" in names(torch.eye(4))
    assert "boolean" in names(torch.ones(3, dtype=torch.bool))
    assert "infinities" in names(torch.full((4, 4), float("-inf")).triu(1))
    assert facts(torch.empty(0)) and facts(torch.tensor(1.0))


def test_properties_hold_in_every_draw():
    assert kept_names(lambda: [torch.randn(64)]) == [{"finite"}]
    assert kept_names(lambda: [torch.randn(8, 8).tril()]) == [{"finite", "zeros"}]
    assert "values" in kept_names(lambda: [torch.linspace(0, 1, 9)])[0]
    assert "zeros" not in kept_names(lambda: [torch.randn(64).relu()])[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_normal_input_takes_all_kinds(kind, dtype):
    sets = draws(lambda: [torch.randn(16, 33).to(dtype)])
    before = sets[0][0].clone()
    _, (new,), reasons = variant(kind, sets[0], properties(sets), seed=5)
    assert new.shape == before.shape and new.dtype == dtype and not torch.equal(new, before)
    assert not reasons
    again = variant(kind, sets[0], properties(sets), seed=5)[1][0]
    assert torch.equal(again.nan_to_num(), new.nan_to_num())
    if kind == "magnitudes":
        rows = new.float().abs().flatten()
        assert rows.max() / rows[rows > 0].min() > 1e4
    if kind == "permuted":
        assert torch.equal(new.float().sort(0).values, before.float().sort(0).values)


@pytest.mark.parametrize("kind", ["runs", "special", "extremes", "changed_elements"])
def test_most_values_stay_as_they_were_drawn(kind):
    sets = draws(lambda: [torch.randn(64, 64)])
    for seed in range(40):
        _, (new,), _ = variant(kind, sets[0], properties(sets), seed)
        assert 0 < (new != sets[0][0]).sum() <= sets[0][0].numel() / 2


def test_infinities_are_for_outputs_that_can_show_nan():
    sets = draws(lambda: [torch.randn(64)])
    for seed in range(20):
        found = {kind: variant(kind, sets[0], properties(sets), seed)[1][0] for kind in ("special", "extremes")}
        assert {math.inf, -math.inf} <= set(found["special"].tolist()) and found["extremes"].isfinite().all()
    shown = usual_kinds([torch.ones(2)])
    for other in (torch.ones(2) > 0, torch.ones(2, dtype=torch.complex64)):
        hidden = usual_kinds([torch.ones(2), other])
        assert set(shown) - set(hidden) == {"special"} and set(hidden) - set(shown) == {"extremes"}


def test_runs_stay_one_sided_along_every_axis():
    """A gate stays open for the whole of a sequence, wherever the steps are."""
    sets = draws(lambda: [torch.randn(6, 48, 20)])
    for axis in range(3):
        open_ = 0
        for seed in range(20):
            _, (new,), _ = variant("signs", sets[0], properties(sets), seed)
            lowest = new.amin(axis)
            open_ += bool((lowest > 0).any()) and bool((new.abs() > 5).any())
        assert open_ >= 8


def test_indices_are_skewed_within_their_range():
    sets = draws(lambda: [torch.randint(0, 16, (2048,)), torch.randperm(2048)])
    kept = properties(sets)
    for seed in range(20):
        _, (new, order), _ = variant("runs", sets[0], kept, seed)
        assert new.bincount().max() > 2048 / 5 and {0, 15} <= set(new.tolist()) <= set(range(16))
        assert torch.equal(order, sets[0][1])


def test_offsets_stay_offsets():
    def offsets():
        return [torch.cat([torch.tensor([0]), torch.randint(0, 9, (30,)).sort().values, torch.tensor([9])])]

    sets = draws(offsets)
    is_changed, (new,), _ = variant("runs", sets[0], properties(sets), 3)
    assert is_changed and (new.diff() >= 0).all() and new[0] == 0 and new[-1] == 9


def test_rows_of_masks_become_full_and_empty():
    sets = draws(lambda: [torch.rand(32, 24) > 0.5, (torch.rand(32, 24) > 0.5).float()])
    for kind, value in (("runs", 1), ("special", 0)):
        _, tensors, reasons = variant(kind, sets[0], properties(sets), 3)
        assert not reasons and all((mask == value).all(1).any() for mask in tensors)


def test_special_values_stay_out_of_ranges():
    sets = draws(lambda: [torch.randn(64), torch.rand(64)])
    found = set()
    for seed in range(40):
        _, (new, unit), _ = variant(("special", "nan")[seed % 2], sets[0], properties(sets), seed)
        assert torch.equal(unit, sets[0][1])
        found |= {str(value) for value in new[new != sets[0][0]].tolist()}
    assert {"nan", "inf", "-inf", "-0.0"} <= found


def test_very_many_rows_are_permuted_too():
    rows = (1 << 22) + 6
    sets = [[torch.arange(rows, dtype=torch.int32)]]
    orders = [variant("permuted", sets[0], [frozenset()], seed=seed)[1][0] for seed in (3, 3, 4)]
    assert torch.equal(orders[0].sort().values, sets[0][0]) and torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2]) and not torch.equal(orders[0], sets[0][0])
    assert (orders[0].diff().abs() > rows // 5).all(), "neighbours are far from each other"


def test_kept_properties_stop_a_change():
    sets = draws(lambda: [torch.rand(8, 8).softmax(-1), torch.randint(0, 5, (8,)), torch.ones(8, 8).tril()])
    kept = properties(sets)
    for kind, reason in (("magnitudes", "sum to 1"), ("signs", "nothing to change")):
        is_changed, tensors, reasons = variant(kind, sets[0], kept, seed=1)
        assert not is_changed and reason in " ".join(reasons)
        assert all(map(torch.equal, tensors, sets[0]))
    _, tensors, reasons = variant("permuted", sets[0], kept, seed=1)
    assert torch.equal(tensors[2], sets[0][2]) and "same in every draw" in " ".join(reasons)
    order = [int((sets[0][0] == row).all(1).nonzero()[0]) for row in tensors[0]]
    assert torch.equal(tensors[1], sets[0][1][order])


def test_integers_are_never_scaled():
    sets = draws(lambda: [torch.randint(0, 100, (64,)), torch.rand(64) > 0.5])
    for kind in ("magnitudes", "signs"):
        assert not variant(kind, sets[0], properties(sets), seed=1)[0]


def test_unit_range_is_scaled_downwards():
    sets = draws(lambda: [torch.rand(512)])
    _, (new,), _ = variant("magnitudes", sets[0], properties(sets), seed=1)
    assert new.max() <= 1 and new.min() >= 0


def test_scalar_tensor_stays():
    sets = draws(lambda: [torch.randn(())])
    assert not any(variant(kind, sets[0], properties(sets), seed=1)[0] for kind in KINDS)


def test_wide_variants_stay_in_their_range():
    kept = properties(draws(lambda: [torch.randn(8, 8), torch.rand(8, 8), torch.arange(64).view(8, 8)]))
    torch.manual_seed(5)
    given = [torch.randn(8, 8), torch.rand(8, 8), torch.arange(64).view(8, 8)]
    large, small = (variant(kind, given, kept, 1)[1] for kind in ("large", "small"))
    assert torch.equal(large[0], given[0] * 1e4) and torch.equal(large[1], given[1])
    assert torch.equal(small[0], given[0] * 1e-4) and torch.equal(small[1], given[1] * 1e-4)
    assert torch.equal(large[2], given[2])
