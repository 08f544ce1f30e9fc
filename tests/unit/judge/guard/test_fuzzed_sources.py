"""A fixed sample of `tests/fuzzing.py sources`, and inputs that once took hours or a traceback."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate
from cuda_agent.judge.guard import check_texts
from cuda_agent.judge.guard.preprocessed import Piece, Preprocessed, own_lines
from cuda_agent.judge.guard.source import check_preprocessed
from fuzzing import run

HUGE_NUMBER = "@f(0x" + "f" * 10_000 + ")\nclass ModelNew(nn.Module):\n    pass\n"
DEEP = {
    "sum": "x = 0" + "+0" * 10_000,
    "number": HUGE_NUMBER,
    "attributes": "x" + ".a" * 10_000,
    "calls": "x" + "()" * 10_000,
    "nots": "not " * 10_000 + "x",
}
#: each was quadratic or worse: 20,000 characters took up to a minute.
LONG = {
    "assembler without end": "asm(" * 20_000,
    "empty lines": "\n" * 100_000,
    "names that hide": "using namespace at " * 5000,
    "statics without end": "Tensor a; static " * 5000,
    "a chain of classes": "struct A0{Tensor a;};" + "".join(f"struct A{i + 1}{{A{i} a;}};" for i in range(3000)),
}


def test_mutated_sources() -> None:
    assert run("sources", 0, 40) == []


@pytest.mark.parametrize("path", ["/usr/include/\0", "kernels/" + "a" * 5000])
def test_odd_paths_in_line_markers_are_the_candidates(path: str) -> None:
    seen = own_lines(f'# 1 "{path}"\nint mine = system("x");\n', [Path("/usr")])
    (violation,) = check_preprocessed([seen], Candidate(files={}), "kernels/a.cpp", Device.CPU)
    assert len(violation.detail) < 300


@pytest.mark.parametrize("name", DEEP)
def test_python_that_is_too_deep_is_a_violation(name: str) -> None:
    found = check_texts(Candidate(files={"model_new.py": DEEP[name]}))
    assert {violation.rule for violation in found} == {"too_deep"}


def test_long_names_are_cut_in_what_is_said() -> None:
    found = check_texts(Candidate(files={"model_new.py": "import " + "a" * 1_000_000}))
    assert found and all(len(violation.detail) < 300 for violation in found)


@pytest.mark.parametrize("name", LONG)
def test_no_text_takes_long(name: str) -> None:
    seen = Preprocessed((Piece("kernels/a.cu", 1, LONG[name]),))
    begin = time.process_time()
    check_preprocessed([seen], Candidate(files={}), "kernels/a.cu", Device.CUDA)
    assert time.process_time() - begin < 10
