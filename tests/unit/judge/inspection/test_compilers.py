"""The compilers' reports, in their own words."""

from __future__ import annotations

from cuda_agent.judge.inspection.compilers import parse_ptxas, parse_vectorised

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5plainPfPKf' for 'sm_90a'
ptxas info    : Function properties for _Z5plainPfPKf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers, used 0 barriers
ptxas info    : Compile time = 13.408 ms
ptxas info    : Compiling entry function '_Z5heavyPfPKfi' for 'sm_90a'
ptxas info    : Function properties for _Z6helperf
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Function properties for _Z5heavyPfPKfi
    352 bytes stack frame, 584 bytes spill stores, 676 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 352 bytes cumulative stack size, 4096 bytes smem
ptxas info    : Compile time = 30.472 ms
"""

OLDER = """ptxas info    : Compiling entry function '_Z3oldPf' for 'sm_80'
ptxas info    : Function properties for _Z3oldPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, 49152 bytes smem, 380 bytes cmem[0]
"""

VECTORISED = """kernels/a.cpp:5:50: optimized: loop vectorized using 64 byte vectors
kernels/a.cpp:5:50: optimized: loop vectorized using 32 byte vectors
kernels/a.cpp:5:50: missed: couldn't vectorize loop
kernels/a.cpp:9:21: missed: couldn't vectorize loop
kernels/a.cpp:9:21: missed: not vectorized: no vectype for stmt: _14 = *_13;
kernels/a.cpp:9:21: missed: not vectorized: control flow in loop.
kernels/a.cpp:12:3: missed: statement clobbers memory: foo ();
/usr/include/c++/12/cmath:5:1: missed: couldn't vectorize loop
"""


def test_ptxas() -> None:
    found = {name: tuple(used.values()) for name, used in parse_ptxas(PTXAS).items()}
    assert found == {"_Z5plainPfPKf": (14, 0, 0, 0, 0), "_Z5heavyPfPKfi": (64, 4096, 352, 584, 676)}
    (old,) = parse_ptxas(OLDER).values()
    assert old["registers"] == 32 and old["shared_bytes"] == 49152 and old["stack_bytes"] == 0
    assert parse_ptxas("nothing of that kind") == {}


def test_vectorised_loops() -> None:
    assert parse_vectorised(VECTORISED, ["kernels/a.cpp"]) == [
        "kernels/a.cpp:5: vectorised (loop vectorized using 64 byte vectors)",
        "kernels/a.cpp:9: NOT vectorised (not vectorized: no vectype for stmt: _14 = *_13;)",
    ]
