"""The closed vocabularies of the records."""

from __future__ import annotations

from enum import StrEnum


class Device(StrEnum):
    """Where kernels run. `cuda` is what the project is for; `cpu` is the same contract in C++."""

    CUDA = "cuda"
    CPU = "cpu"


class Precision(StrEnum):
    """Precision policy: what arithmetic a candidate may use inside float32 operators."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"


class Verdict(StrEnum):
    """How an evaluation ended. Only `PASSED` is paid. `QUARANTINED`: verified, but faster than the device's memory
    allows, so a person must look. `UNSAFE`: compute-sanitizer found a bad access or a race in a verified candidate."""

    PASSED = "passed"
    BUILD_FAILED = "build_failed"
    LOAD_FAILED = "load_failed"
    RAISED = "raised"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    WRONG_STRUCTURE = "wrong_structure"
    INCORRECT = "incorrect"
    VIOLATION = "violation"
    QUARANTINED = "quarantined"
    UNSAFE = "unsafe"
    TIMING_VOID = "timing_void"


class Phase(StrEnum):
    """The step of an evaluation, in order."""

    SNAPSHOT = "snapshot"
    GUARD = "guard"
    BUILD = "build"
    VERIFY = "verify"
    PROFILE = "profile"


class SandboxLevel(StrEnum):
    """`full`: own user, PID, network, IPC and mount namespaces. `reduced`: Landlock and limits only."""

    FULL = "full"
    REDUCED = "reduced"


class Milestone(StrEnum):
    """Which line of the reward equation applied (paper, "Reward")."""

    FAILED = "failed"
    CORRECT = "correct"
    FASTER_THAN_EAGER = "faster_than_eager"
    FASTER_THAN_BOTH = "faster_than_eager_and_compile"


class RewardBaseline(StrEnum):
    """Which baseline pays: PyTorch's defaults, or the fastest at the candidate's precision."""

    PUBLISHED = "published"
    MATCHED = "matched"
