"""What object files ask the linker for, and what the linked library needs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cuda_agent.core.enums import Device
from cuda_agent.judge.guard.symbols import check_library, forbidden_symbol


@pytest.mark.parametrize(
    ("symbol", "rule"),
    [
        ("at::_ops::empty_like::call(at::Tensor const&)", ""),
        ("at::_ops::relu::call(at::Tensor const&)", "torch_compute"),
        ("at::native::relu(at::Tensor const&)", "torch_compute"),
        ("at::detail::empty_cuda(c10::ArrayRef<long>)", "torch_compute"),
        ("c10::impl::TorchDispatchModeTLS::pop_stack()", "torch_compute"),
        ("c10::impl::ExcludeDispatchKeyGuard::ExcludeDispatchKeyGuard(c10::DispatchKeySet)", ""),
        ("torch::autograd::generated::foo", "torch_compute"),
        ("vtable for torch::autograd::AutogradMeta", ""),
        ("dlsym@GLIBC_2.34", "loader"),
        ("pthread_create@GLIBC_2.34", "process"),
        ("pthread_mutex_lock@GLIBC_2.2.5", ""),
        ("std::chrono::_V2::steady_clock::now()@GLIBCXX_3.4.19", "clock_or_outside"),
        ("cudaLaunchKernel@libcudart.so.13", ""),
        ("cudaStreamCreate@libcudart.so.13", "cuda_side_channel"),
        ("PyImport_ImportModule", "python_from_c"),
        ("PyFrame_GetBack", ""),
    ],
)
def test_symbols(symbol: str, rule: str) -> None:
    found = forbidden_symbol(symbol, Device.CUDA)
    assert found in ("clock", "outside_world") if rule == "clock_or_outside" else found == rule


def test_products_through_torch_are_allowed_on_the_cpu_only() -> None:
    assert forbidden_symbol("at::_ops::mm_out::call(at::Tensor const&)", Device.CPU) == ""
    assert forbidden_symbol("at::_ops::mm_out::call(at::Tensor const&)", Device.CUDA) == "torch_compute"


def test_needed_libraries(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("#include <cmath>\ndouble f(double x) { return std::sin(x); }\n")
    other = ["g++", "-shared", "-fPIC", "a.cpp", "-o", "libother.so"]
    mine = ["g++", "-shared", "-fPIC", "-Wl,--no-as-needed", "a.cpp", "-o", "mine.so", "-L.", "-lother", "-lm"]
    for command in (other, mine):
        subprocess.run(command, cwd=tmp_path, check=True)
    assert check_library(tmp_path / "libother.so") == ()
    (violation,) = check_library(tmp_path / "mine.so")
    assert (violation.rule, violation.layer) == ("needed_library", "symbols")
    assert "libother.so" in violation.detail
