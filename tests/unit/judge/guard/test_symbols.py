"""What object files ask the linker for, and what the linked library needs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cuda_agent.core.enums import Device
from cuda_agent.judge.guard.mangled import qualified
from cuda_agent.judge.guard.symbols import broken_rule, check_library, check_symbols

ALLOWED = (
    # That of <iostream> since g++ 13.
    "_ZSt21ios_base_library_initv",
    "_ZN2at4_ops10empty_like4callERKNS_6TensorESt8optionalIN3c1010ScalarTypeEE",
    "_ZN3c104impl23ExcludeDispatchKeyGuardC1ENS_14DispatchKeySetE",
    "_ZTVN5torch8autograd12AutogradMetaE",
    "_ZNK2at10TensorBase8data_ptrIfEEPT_v",
    "_ZNSo9_M_insertIlEERSoT_",
    "_ZStlsISt11char_traitsIcEERSt13basic_ostreamIcT_ES5_PKc",
    "_ZNKSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE4findEPKcmm",
    "_ZTVN10__cxxabiv120__si_class_type_infoE",
    "_ZTIPv",
    "_ZnwmSt11align_val_t",
    "_ZGVdN8v_expf",
    "__expf_finite",
    "erfl",
    "sincosf",
    "__isoc99_sscanf",
    "pthread_mutex_lock",
    "GOMP_parallel",
    "GOMP_loop_nonmonotonic_dynamic_start",
    "omp_get_max_threads",
    "__truncsfbf2",
    "__udivti3",
    "PyFrame_GetBack",
    "cudaLaunchKernelExC",
    "__cudaRegisterFunction",
    "cublasSgemm_v2",
    "cublasLtMatmul",
    "cudnnBackendExecute",
)
REFUSED = {
    "_ZN2at4_ops4relu4callERKNS_6TensorE": "torch_compute",
    "_ZN2at6native4reluERKNS_6TensorE": "torch_compute",
    "_ZN2at6detail10empty_cudaEN3c108ArrayRefIlEE": "torch_compute",
    "_ZNK2at10TensorBase2toEN3c1013TensorOptionsE": "torch_compute",
    "_ZN2at8internal15invoke_parallelElllRKSt8functionIFvllEE": "torch_compute",
    "_ZN3c1010ThreadPool3runESt8functionIFvvEE": "torch_compute",
    "_ZN3c104impl20TorchDispatchModeTLS9pop_stackEv": "torch_compute",
    "THPVariable_Unpack": "torch_compute",
    "PyImport_ImportModule": "python_from_c",
    "PyRun_SimpleString": "python_from_c",
    "_ZN8pybind117module_6importEPKc": "unlisted_symbol",
    "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE": "unlisted_symbol",
    "_ZNSt6chrono3_V212steady_clock3nowEv": "unlisted_symbol",
    "_ZNSt13basic_filebufIcSt11char_traitsIcEE4openEPKcSt13_Ios_Openmode": "unlisted_symbol",
    "_ZNSt13random_device7_M_initEPKcm": "unlisted_symbol",
    "dlsym": "unlisted_symbol",
    "__fork": "unlisted_symbol",
    "__open64": "unlisted_symbol",
    "setsid": "unlisted_symbol",
    "write": "unlisted_symbol",
    "syscall": "unlisted_symbol",
    "vmsErf": "unlisted_symbol",
    "cblas_sgemm": "unlisted_symbol",
    "sgemm_": "unlisted_symbol",
    "Sleef_expf8_u10avx2": "unlisted_symbol",
    "dnnl_primitive_execute": "unlisted_symbol",
    "GOMP_parallel_start": "unlisted_symbol",
    "GOMP_target_ext": "unlisted_symbol",
    "omp_get_wtime": "unlisted_symbol",
    "cudaStreamCreateWithFlags": "unlisted_symbol",
    "cudaLaunchHostFunc": "unlisted_symbol",
    "cublasLtLoggerOpenFile": "unlisted_symbol",
    "exit": "unlisted_symbol",
}


@pytest.mark.parametrize("symbol", ALLOWED)
def test_what_kernels_need_is_listed(symbol: str) -> None:
    assert broken_rule(qualified(symbol), Device.CUDA) == ""


@pytest.mark.parametrize("symbol", REFUSED)
def test_what_is_not_listed_is_refused(symbol: str) -> None:
    assert broken_rule(qualified(symbol), Device.CUDA) == REFUSED[symbol]


def test_products_through_torch_are_allowed_on_the_cpu_only() -> None:
    assert broken_rule("at::_ops::mm_out::call", Device.CPU) == ""
    assert broken_rule("at::_ops::mm_out::call", Device.CUDA) == "torch_compute"
    assert broken_rule("cublasSgemm_v2", Device.CPU) == "unlisted_symbol"


@pytest.mark.parametrize(
    "symbol", ["_Z", "_ZN", "_ZN9E", "_ZNSt", "_ZTI", "_ZN" + "1a" * 10_000, "_ZN999999a", "", "_ZS"]
)
def test_names_that_no_compiler_makes_are_read(symbol: str) -> None:
    assert len(qualified(symbol)) < 100


def _objects(folder: Path, **sources: str) -> dict[str, Path]:
    for name, text in sources.items():
        (folder / f"{name}.cpp").write_text(text)
        subprocess.run(["g++", "-c", f"{name}.cpp", "-o", f"{name}.o"], cwd=folder, check=True)
    return {f"kernels/{name}.cpp": folder / f"{name}.o" for name in sources}


def test_objects_may_use_each_other_but_not_hide_behind_local_names(tmp_path: Path) -> None:
    caller = 'extern "C" int helper(); extern "C" int fork(); int f() { return helper() + fork(); }'
    other = (
        'extern "C" int helper() { return 1; } static int fork() __attribute__((used)); static int fork() { return 2; }'
    )
    (violation,) = check_symbols(_objects(tmp_path, caller=caller, other=other), Device.CPU)
    assert "imports fork" in violation.detail


def test_threads_are_told_what_to_use(tmp_path: Path) -> None:
    text = "#include <thread>\nvoid g(); void f() { std::thread t(g); t.join(); }"
    found = check_symbols(_objects(tmp_path, a=text, b="void g() {}"), Device.CPU)
    assert any(violation.detail.endswith("use OpenMP") for violation in found)


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
