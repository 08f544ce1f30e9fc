"""Triton kernels as comparisons: allowed under their own rule only, and nothing else with them."""

from __future__ import annotations

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Phase, Verdict
from cuda_agent.core.records import Candidate, Evaluation, Task
from cuda_agent.judge import guard
from cuda_agent.judge.case import Case

TRITON = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": 1024}, num_warps=4)], key=["n"])
@triton.jit
def scaled(x, out, n, factor: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) * factor, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        out = torch.empty_like(x)
        n = x.numel()
        grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
        scaled[grid](x, out, n, self.factor)
        return out
"""


GRID = 'grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)'


def candidate(text: str = TRITON) -> Candidate:
    return Candidate(files={"model_new.py": text})


def judged(text: str, *, allowed: bool = True) -> tuple[Case, Evaluation]:
    options = JudgeOptions(device=Device.CPU, comparison="triton" if allowed else None)
    case = Case(Task(name="t", source=""), options, candidate(text))
    case.build()
    return case, case.evaluation()


def test_without_the_setting_it_is_refused() -> None:
    case, evaluation = judged(TRITON, allowed=False)
    assert evaluation.verdict is Verdict.VIOLATION and case.decided
    assert evaluation.violations[0].rule == "forbidden_import"
    assert evaluation.comparison is None


def test_with_it_there_is_nothing_to_compile_and_the_evaluation_says_what_it_is() -> None:
    case, evaluation = judged(TRITON)
    assert not evaluation.violations and not case.decided
    assert (evaluation.comparison, evaluation.build, evaluation.phase) == ("triton", None, Phase.GUARD)
    assert "no CUDA extension" in evaluation.notes[0]
    assert guard.check_comparison(candidate())[1] == {"scaled"}


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("        return out\n", "        return torch.relu(out)\n", "torch_compute"),
        ("        return out\n", "        return x * 2\n", "torch_compute"),
        ("        return out\n", "        return nn.functional.relu(x)\n", "torch_compute"),
        ("import triton\n", "import triton\nimport os\n", "forbidden_import"),
        ("import triton\n", "import triton\nfrom triton import runtime\n", "forbidden_import"),
        ("import triton\n", "import triton\nimport triton.backends\n", "forbidden_import"),
        ("@triton.jit", "@triton.jit\n@sneaky", "forbidden_decorator"),
        ("BLOCK: tl.constexpr)", "BLOCK: tl.constexpr = open('/etc/passwd'))", "hidden_call"),
        ("scaled[grid](", "unknown[grid](", "hidden_call"),
        (
            'grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)',
            "grid = (triton.testing.do_bench(n),)",
            "torch_compute",
        ),
        ('grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)', "grid = triton.__builtins__", "forbidden_name"),
    ],
)
def test_everything_else_is_as_forbidden_as_ever(old: str, new: str, rule: str) -> None:
    assert old in TRITON
    _, evaluation = judged(TRITON.replace(old, new))
    assert evaluation.verdict is Verdict.VIOLATION
    assert rule in {violation.rule for violation in evaluation.violations}, evaluation.violations
    assert evaluation.comparison == "triton"


def test_a_cuda_extension_is_judged_as_one_under_the_setting_too() -> None:
    files = {"model_new.py": TRITON, "kernels/a.cpp": "int a;\n"}
    assert not guard.is_comparison(Candidate(files=files))
    assert not guard.is_comparison(candidate("import torch\n"))
    assert not guard.is_comparison(candidate("def broken(:\n"))
    assert not guard.is_comparison(Candidate(files={}))
