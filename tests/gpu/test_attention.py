"""Attention in one kernel on a GPU: every size of a head and every setting against float64."""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from library_cases import relative_error
from library_kernels import compiled, pointers

from cuda_agent.playbook.skills.attention.call import FORMS, MASKS, Attention
from cuda_agent.playbook.skills.attention.skill import kernel, library_files

pytestmark = pytest.mark.gpu

#: sizes of a batch.
OUTER = 2
SPLITS = 16


@dataclass(frozen=True)
class Case:
    """`mask`: "", "added", "row" (one for all queries), "float32" or "boolean". `new`: keys behind those of a cache."""

    heads: int
    shared: int
    rows: int
    keys: int
    width: int = 64
    value: int = 64
    dtype: str = "bfloat16"
    causal: bool = False
    mask: str = ""
    cap: float = 0.0
    new: int = 0

    def call(self) -> Attention:
        return Attention(
            "q", "k", "v", mask="mask" if self.mask else None, batch=(OUTER, self.shared),
            group=self.heads // self.shared, rows=self.rows, keys=self.keys, width=self.width, value=self.value,
            scale=self.width**-0.5, causal=self.causal, cap=self.cap, dtype=self.dtype,
            joined=self.new > 0,
        )  # fmt: skip

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    def mask_tensor(self) -> torch.Tensor | None:
        shape = (OUTER, 1, 1 if self.mask == "row" else self.rows, self.keys)
        if self.mask == "boolean":
            seen = torch.rand(shape, device="cuda") > 0.3
            seen[0, 0, -1] = False
            return seen
        dtype = torch.float32 if self.mask == "float32" else self.torch_dtype
        return torch.randn(shape, device="cuda").to(dtype) if self.mask else None


CASES = (
    Case(4, 4, 77, 77),
    Case(4, 2, 130, 130, 128, 128, causal=True),
    Case(2, 1, 50, 333, 256, 256),
    Case(8, 2, 1, 1000, 128, 128),
    Case(8, 2, 5, 600, causal=True),
    Case(4, 4, 100, 140, mask="added"),
    Case(4, 2, 96, 136, mask="row"),
    Case(4, 4, 100, 140, dtype="float16", mask="boolean"),
    Case(8, 2, 3, 500, mask="boolean"),
    Case(4, 4, 64, 128, causal=True, mask="float32"),
    Case(4, 4, 33, 65, 32, 32),
    Case(3, 3, 200, 200, 72, 72),
    Case(4, 4, 150, 150, 192, 128, causal=True),
    Case(4, 4, 80, 80, 40, 40, "float16"),
    Case(2, 2, 1, 1),
    Case(8, 2, 1, 1000, 128, 128, new=1),
    Case(8, 2, 5, 600, new=5, mask="added"),
    Case(4, 1, 16, 333, 256, 256, "float16", new=130),
    Case(4, 4, 1, 65, 72, 72, new=1, cap=20.0),
    Case(6, 2, 3, 90, 192, 128, new=89),
    Case(4, 4, 130, 200, new=70, mask="boolean"),
    Case(4, 2, 70, 90, mask="added", cap=2.0),
    Case(4, 4, 70, 70, 256, 256, causal=True, cap=30.0),
    *(
        Case(3, 3, rows, keys, width, width, "float32", causal)
        for width in (4, 20, 32, 48, 64, 80, 96, 128)
        for causal in (False, True)
        for rows, keys in ((128, 128), (1, 1), (67, 67), (200, 333), (333, 200), (1024, 1024))
    ),
    Case(8, 2, 67, 90, dtype="float32", causal=True),
    Case(8, 2, 1, 500, 128, 128, "float32"),
    Case(4, 4, 100, 140, dtype="float32", mask="added"),
    Case(4, 2, 96, 136, 80, 80, "float32", mask="row"),
    Case(4, 1, 33, 70, 128, 128, "float32", mask="boolean"),
    Case(4, 4, 70, 70, dtype="float32", mask="added", cap=5.0),
)


@pytest.fixture(scope="module")
def launchers(tmp_path_factory):
    """The launcher for heads of these sizes."""
    folder = tmp_path_factory.mktemp("attention")
    library = library_files()["kernels/attention_library.cu"]

    @functools.cache
    def built(stem: str, text: str):
        source = folder / f"{stem}.cu"
        source.write_text(text)
        return getattr(compiled(source, folder, ("cudnn",)), f"launch_{stem}")

    def launcher(call: Attention):
        return built(call.stem, (library if call.is_half else "") + kernel(call))

    return launcher


@dataclass(frozen=True)
class Operands:
    """The tensors of a case, [outer, heads, rows, width], whose heads lie between the features of one projection."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None

    @classmethod
    def of(cls, case: Case, scale: float = 1.0) -> Operands:
        shapes = [(case.rows, case.heads, case.width), (case.keys, case.shared, case.width)]
        shapes += [(case.keys, case.shared, case.value)]
        drawn = [scale * torch.randn(OUTER, *shape, device="cuda") for shape in shapes]
        q, k, v = (x.to(case.torch_dtype).transpose(1, 2) for x in drawn)
        return cls(q, k, v, case.mask_tensor())

    def truth(self, case: Case) -> torch.Tensor:
        k, v = (x.double().repeat_interleave(case.heads // case.shared, 1) for x in (self.k, self.v))
        scores = self.q.double() @ k.mT * case.call().scale
        if case.cap:
            scores = case.cap * (scores / case.cap).tanh()
        if self.mask is not None:
            is_bool = self.mask.dtype == torch.bool
            scores = scores.masked_fill(~self.mask, -math.inf) if is_bool else scores + self.mask.double()
        if case.causal:
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -math.inf)
        weights = scores.softmax(-1)
        return weights.masked_fill(scores.amax(-1, keepdim=True) == -math.inf, 0.0) @ v

    def results(self, case: Case, launcher) -> dict[int, torch.Tensor]:
        """Returns the result of every setting that takes the case."""
        call, found = case.call(), {}
        empty = torch.empty(OUTER, case.rows, case.heads, case.value, dtype=case.torch_dtype, device="cuda")
        strides: list[int] = []
        for x in (self.q, self.k, self.v, empty.transpose(1, 2)):
            outer, head, row = x.stride()[:3]
            shared = x is self.k or x is self.v
            strides += [outer, head, row] if shared else [outer, head * call.group, head, row]
        mask = [0] * 5
        if self.mask is not None:
            outer, head, row, key = self.mask.expand(OUTER, case.heads, case.rows, case.keys).stride()
            mask = [outer, head * call.group, head, row, key]
        new = [x[:, :, case.keys - case.new :].contiguous() for x in (self.k, self.v)] if case.new else []
        begin = [case.keys - case.new] if case.new else []
        more = [step for x in new for step in x.stride()[:3]]
        numbers = [OUTER, case.shared, call.group, case.rows, case.keys, SPLITS, *strides, *mask, *begin, *more]
        k, v = (x.clone() for x in (self.k, self.v))
        for x in (k, v) if new else ():
            x[:, :, case.keys - case.new :] = math.nan
        size = SPLITS * case.heads * OUTER * case.rows * (case.value + 2) * 4 + 2**20
        size += 2 * OUTER * case.heads * case.rows * case.keys if case.mask == "boolean" else 0
        scratch = torch.empty(size, dtype=torch.uint8, device="cuda")
        room = [*pointers(scratch), ctypes.c_longlong(size)] if call.is_half else []
        others: list[torch.Tensor | None] = ([*new] or [None, None]) if call.is_half else []
        kind = 0 if self.mask is None else MASKS.get(str(self.mask.dtype).removeprefix("torch."), 1)
        for setting in range(call.form.settings):
            out = torch.full_like(empty, 7.0).transpose(1, 2)
            status = launcher(
                *pointers(out, self.q, k, v, *others, self.mask), *room, (ctypes.c_longlong * len(numbers))(*numbers),
                ctypes.c_float(call.scale), ctypes.c_float(call.cap), int(call.causal), kind, setting,
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
            )  # fmt: skip
            torch.cuda.synchronize()
            assert status in (0, -1), (status, setting)
            if status == 0:
                found[setting] = out
        return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_setting_against_float64(launchers, case):
    operands = Operands.of(case)
    found, truth = operands.results(case, launchers(case.call())), operands.truth(case)
    for setting, out in found.items():
        limit = {"bfloat16": 6e-3, "float16": 1e-3, "float32": 1.5e-3 if setting else 2e-5}[case.dtype]
        assert relative_error(out, truth) < limit, setting
    if case.dtype == "float32":
        assert len(found) == FORMS["float32"].settings
        return
    assert {0, 4, 5, 6, 8} <= set(found)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_scores_do_not_overflow(launchers, dtype):
    """A running maximum keeps what exp() gets below zero. NaN stays NaN."""
    case = Case(1, 1, 256, 256, dtype=dtype)
    operands = Operands.of(case, scale=30.0)
    operands.v[:, 0, 7, 5] = float("nan")
    clean = replace(operands, v=operands.v.nan_to_num())
    truth = clean.truth(case)
    for setting, out in operands.results(case, launchers(case.call())).items():
        assert out[..., 5].isnan().all() and out[..., :5].isfinite().all()
        assert relative_error(out[..., 6:], truth[..., 6:]) < (1e-3 if dtype == "float32" and not setting else 0.05)


def test_results_agree_with_the_operator(launchers):
    case = Case(4, 2, 40, 40, causal=True)
    operands = Operands.of(case)
    expected = F.scaled_dot_product_attention(operands.q, operands.k, operands.v, is_causal=True, enable_gqa=True)
    for out in operands.results(case, launchers(case.call())).values():
        assert relative_error(out, expected) < 1e-2
