"""GPU time by kernel symbol."""

from __future__ import annotations

from typing import Any

import pytest

from cuda_agent.judge.guard.kernels import judge_kernels
from cuda_agent.judge.guard.preprocessed import Compiled
from cuda_agent.workers.inside.cupti import Span
from cuda_agent.workers.inside.kernels import summed
from cuda_agent.workers.requests.candidate import KernelRow

OWN = frozenset({"_Z4gelu6__halfPf", "_ZN51_GLOBAL__N__6950af90_4_a_cu1kILi4EEEvPf", "gemm_of_mine"})
ORIGINS = {
    "_Z4gelu6__halfPf": "own",
    "gemm_of_mine": "own",
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_execute_segment_k_off_kernel": "library",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNN": "library",
    "ampere_sgemm_128x64_tn": "library",
    "_ZN7cutlass7Kernel2I58cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4EEvNT_6ParamsE": "library",
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_": "torch",
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_": "copy",
    "_ZN2at6native18elementwise_kernelILi128EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct_copy_kernel_cudaE": "copy",
    "_Z1kIN3c104HalfEEvPT_": "unknown",
    "triton_poi_fused_relu_0": "torch",
}  # fmt: skip


def claim(*names: str, kind: str = "kernel") -> list[KernelRow]:
    return [(kind, name, 2, 1000) for name in names]


@pytest.mark.parametrize("name", ORIGINS)
def test_origin_of_a_kernel(name: str) -> None:
    found = judge_kernels(claim(name), OWN, recordable=True)
    assert found.report is not None
    assert found.report.kernels[0].origin == ORIGINS[name]
    assert {violation.rule for violation in found.violations} == (
        {"torch_compute"} if ORIGINS[name] == "torch" else set()
    )


def test_shares_and_notes() -> None:
    rows = [
        ("kernel", "ampere_sgemm_128x64_tn", 1, 97_000),
        ("kernel", "gemm_of_mine", 1, 2_000),
        ("kernel", "mystery", 1, 500),
        ("memset", "", 1, 500),
    ]
    found = judge_kernels(rows, OWN, recordable=True)
    assert found.report is not None
    assert (found.report.own_us, found.report.library_us, found.report.copy_us) == (2.0, 97.0, 0.5)
    assert "own kernels carry 2.0%" in found.notes[0]
    assert "mystery" in found.notes[1]
    assert found.violations == ()


def test_a_missing_record_convicts_where_records_can_be_had() -> None:
    found = judge_kernels(None, OWN, recordable=True, error="busy")
    assert [violation.rule for violation in found.violations] == ["missing_records"]
    assert judge_kernels(None, OWN, recordable=False).violations == ()


def test_a_call_that_leaves_the_gpu_idle_convicts() -> None:
    (violation,) = judge_kernels([], OWN, recordable=False).violations
    assert (violation.rule, violation.layer) == ("missing_records", "kernels")


def test_spans_are_summed_by_name() -> None:
    spans = [Span("kernel", "a", 0, 10), Span("memcpy", "", 10, 40), Span("kernel", "a", 50, 55)]
    assert summed(spans) == [("memcpy", "", 1, 30), ("kernel", "a", 2, 15)]


def test_kernels_that_nvcc_registers(tmp_path: Any) -> None:
    stub = tmp_path / "a.cudafe1.stub.c"
    stub.write_text(
        "static void f(void **__T1){__nv_dummy_param_ref(__T1);__nv_save_fatbinhandle_for_managed_rt(__T1);"
        "__cudaRegisterEntry(__T1, ((void ( *)(float *, int))_NV_ANON_NAMESPACE::k<(int)4> ), "
        "_ZN51_GLOBAL__N__6950af90_4_a_cu1kILi4EEEvPf, 128);"
        "__cudaRegisterEntry(__T1, ((void ( *)(float *))gelu), _Z4geluPf, (-1));}"
    )
    read = Compiled.read([], [stub], [])
    assert read is not None
    assert read.kernels == ("_Z4geluPf", "_ZN51_GLOBAL__N__6950af90_4_a_cu1kILi4EEEvPf")


@pytest.mark.parametrize("seeded", [True, False])
def test_only_a_seeded_task_lets_torch_draw(seeded: bool) -> None:
    name = "_ZN2at6native54_GLOBAL__N__43distribution_elementwise_grid_stride_kernelIfLi4EE"
    found = judge_kernels(claim(name), OWN, recordable=True, seeded=seeded)
    assert bool(found.violations) is not seeded
