"""Arenas: packed, aligned, sealed; tensors that look like any other."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import TensorMeta
from cuda_agent.workers.buffers import (
    Arena,
    Attached,
    Layout,
    contiguous,
    contiguous_strides,
    extent_bytes,
    is_dense,
)


def meta(*shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None) -> TensorMeta:
    return TensorMeta(shape=shape, dtype=dtype, strides=contiguous_strides(shape) if strides is None else strides)


def test_strides_and_extents() -> None:
    assert contiguous_strides((2, 3, 4)) == (12, 4, 1)
    assert contiguous_strides(()) == ()
    assert extent_bytes(meta(2, 3)) == 24
    assert extent_bytes(meta(2, 3, strides=(1, 2), dtype="bfloat16")) == 12
    assert extent_bytes(meta(0, 3)) == 0
    assert extent_bytes(meta()) == 4


def test_density() -> None:
    assert is_dense(meta(2, 3))
    assert is_dense(meta(2, 3, strides=(1, 2)))
    assert is_dense(meta(2, 1, 3, strides=(3, 77, 1)))
    assert not is_dense(meta(2, 3, strides=(0, 1)))
    assert not is_dense(meta(2, 3, strides=(4, 1)))


@given(st.permutations(range(4)), st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_every_permutation_is_dense(order: list[int], shape: list[int]) -> None:
    tensor = torch.empty(shape).permute(order)
    assert is_dense(TensorMeta(shape=tuple(tensor.shape), dtype="float32", strides=tuple(tensor.stride())))


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["float32", "bool", "bfloat16", "int64"])), max_size=8))
def test_packed_slots_are_aligned_and_apart(sizes: list[tuple[int, str]]) -> None:
    layout = Layout.pack([meta(size, dtype=dtype) for size, dtype in sizes], Device.CPU, copies=2)
    assert len(layout.slots) == 2 * len(sizes)
    end = 0
    for slot in layout.slots:
        assert slot.offset % 64 == 0
        assert slot.offset >= end
        end = slot.offset + extent_bytes(slot.meta)
    assert end <= layout.nbytes


def test_tensors_are_plain_and_share_memory_with_the_worker() -> None:
    metas = [meta(3, 5), meta(4, dtype="bfloat16"), meta(2, 3, strides=(1, 2)), meta(0, 2), meta(dtype="int64")]
    layout = Layout.pack(metas, Device.CPU)
    arena = Arena("test", layout.nbytes, Device.CPU)
    message, (descriptor,) = arena.export()
    worker = Attached(message, (os.dup(descriptor),))
    mine = arena.tensors(layout.slots)
    theirs = worker.tensors(layout.slots)
    for index, (a, b, expected) in enumerate(zip(mine, theirs, metas, strict=True)):
        assert type(b) is torch.Tensor
        assert not b._is_view()
        assert b.storage_offset() == 0
        assert b.untyped_storage().nbytes() == extent_bytes(expected)
        assert (tuple(b.shape), tuple(b.stride())) == (expected.shape, expected.strides) or b.numel() == 0
        a.fill_(index + 1)
        assert bool((b == index + 1).all())
        b.mul_(2)
        assert bool((a == 2 * (index + 1)).all())
    worker.detach()
    arena.close()


def test_an_arena_is_sealed_so_that_the_judge_never_gets_a_bus_error() -> None:
    arena = Arena("test", 1 << 16, Device.CPU)
    (descriptor,) = arena.export()[1]
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    arena.close()


def test_copy_and_fill() -> None:
    one, two = Arena("a", 4096, Device.CPU), Arena("b", 4096, Device.CPU)
    one.fill(0x7F)
    two.copy_from(one)
    assert bool((two.raw() == 0x7F).all())
    with pytest.raises(ValueError, match="outside"):
        one.raw(4000, 200)
    one.close()
    two.close()
    assert contiguous(meta(2, 3, strides=(1, 2)), "float64") == meta(2, 3, dtype="float64")
