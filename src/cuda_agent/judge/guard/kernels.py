"""The rule for GPU time: it sorts one call's kernels by exact symbol into own, allowed library, torch and unknown.

A kernel is the candidate's when nvcc registered its mangled name while compiling the candidate's sources. The records
come from the candidate's own process, so they convict and never acquit.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cuda_agent.core.records import KernelReport, KernelTime, Violation
from cuda_agent.workers.requests.candidate import KernelRow

LAYER = "kernels"
#: below this share of the GPU time, own kernels carry nearly nothing.
LITTLE = 0.05
_KEPT = 50
#: the namespace of the kernel itself; a template argument such as c10::Half says nothing.
_TORCH = re.compile(r"^_ZN?K?(?:2at|3c10|5torch|14at_cuda_detail)|^_ZN\d+_INTERNAL_\w*?2at6native|^triton_")
#: what allocating zeros and `contiguous` run.
_TORCH_COPY = re.compile(r"FillFunctor|direct_copy_kernel|\d+copy_kernel|float16_copy|bfloat16_copy")
#: what torch.rand, torch.randn and torch.randint run.
_TORCH_DRAW = re.compile(r"distribution_elementwise_grid_stride_kernel")
_LIBRARY = re.compile(
    r"cublas|cudnn|cutlass|xmma|nvjet|cask|gemm|gemv|splitK|dot_kernel|reduce_1Block|implicit_convolve|winograd|wgrad"
    r"|dgrad|fprop|conv[123]d|nchwToNhwc|nhwcToNchw|im2col|tensorop|sm\d\d_|ampere_|volta_|turing_|hopper_|scal_kernel",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class KernelFindings:
    """The kernel report and the violations. `report` is None where nothing was recorded."""

    report: KernelReport | None
    violations: tuple[Violation, ...] = ()
    notes: tuple[str, ...] = ()


def judge_kernels(
    rows: Sequence[KernelRow] | None,
    own: frozenset[str],
    *,
    recordable: bool,
    seeded: bool = False,
    error: str = "",
) -> KernelFindings:
    """Checks the records of one call; None where there are none, as `error` says. `own` holds the mangled names of the
    candidate's kernels. `recordable` says that CUPTI is known to work here, so that records must exist. Where the task
    is `seeded`, torch may draw random numbers."""
    if rows is None:
        why = error[:200] or "no record"
        missing = (_violation("missing_records", f"no record of GPU kernels: {why}"),) if recordable else ()
        return KernelFindings(None, missing, (f"GPU kernels were not recorded: {why}",))
    if not rows:
        return KernelFindings(None, (_violation("missing_records", "a call without any work on the GPU"),))
    times = [
        KernelTime(name=name[:500], origin=_origin(kind, name, own, seeded), calls=count, us=ns / 1e3)
        for kind, name, count, ns in rows
    ]
    sums = dict.fromkeys(("own", "library", "torch", "copy", "unknown"), 0.0)
    for time in times:
        sums[time.origin] += time.us
    report = KernelReport(
        own_us=sums["own"],
        library_us=sums["library"],
        torch_us=sums["torch"],
        copy_us=sums["copy"],
        unknown_us=sums["unknown"],
        kernels=tuple(times[:_KEPT]),
    )
    computed = [time for time in times if time.origin == "torch"]
    violations = tuple(_violation("torch_compute", f"{t.name[:200]}: {t.us:.1f} µs") for t in computed[:10])
    return KernelFindings(report, violations, tuple(_notes(report)))


def _origin(kind: str, name: str, own: frozenset[str], seeded: bool) -> str:
    if kind != "kernel":
        return "copy"
    if _TORCH.search(name):
        if seeded and _TORCH_DRAW.search(name):
            return "library"
        return "copy" if _TORCH_COPY.search(name) else "torch"
    if name in own:
        return "own"
    return "library" if _LIBRARY.search(name) else "unknown"


def _notes(report: KernelReport) -> list[str]:
    notes = []
    if report.own_share < LITTLE:
        notes.append(f"the candidate's own kernels carry {report.own_share:.1%} of the GPU time")
    unknown = [time.name[:80] for time in report.kernels if time.origin == "unknown"]
    if unknown:
        notes.append(f"kernels of unknown origin: {', '.join(unknown[:5])}")
    return notes


def _violation(rule: str, detail: str) -> Violation:
    return Violation(rule=rule, layer=LAYER, detail=detail)
