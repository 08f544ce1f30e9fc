"""The enumerations of the records."""

from enum import StrEnum


class Device(StrEnum):
    """The device of the kernels. `cuda` is the project's purpose; `cpu` has the same contract in C++."""

    CUDA = "cuda"
    CPU = "cpu"


class Precision(StrEnum):
    """The precision policy: the arithmetic that a candidate may use inside float32 operators."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"


class Verdict(StrEnum):
    """The result of an evaluation. Only `PASSED` is rewarded. `QUARANTINED` is verified but faster than the device's
    memory allows, so a person must check it. `UNSAFE` is a verified candidate in which compute-sanitizer found a bad
    access or a race."""

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
    """The steps of an evaluation, in order."""

    SNAPSHOT = "snapshot"
    GUARD = "guard"
    BUILD = "build"
    VERIFY = "verify"
    PROFILE = "profile"


class Signal(StrEnum):
    """The weights on which a task's answer depends on its inputs beyond the tolerance: as the task draws them; scaled,
    so that the signal of the inputs survives from layer to layer; or none, so that the answer is a constant."""

    OWN = "own"
    SCALED = "scaled"
    NONE = "none"


class OracleWay(StrEnum):
    """How the float64 answer of a task is computed: whole; by slices of the inputs; whole, but held in the host's
    memory; or on the host. From the second on, it is compared piece by piece."""

    WHOLE = "whole"
    SLICES = "slices"
    HELD = "held"
    HOST = "host"


class SandboxLevel(StrEnum):
    """`full`: own user, PID, network, IPC and mount namespaces. `reduced`: only Landlock and limits."""

    FULL = "full"
    REDUCED = "reduced"


class Milestone(StrEnum):
    """The line of the reward equation that applied (paper, "Reward")."""

    FAILED = "failed"
    CORRECT = "correct"
    FASTER_THAN_EAGER = "faster_than_eager"
    FASTER_THAN_BOTH = "faster_than_eager_and_compile"


class RewardBaseline(StrEnum):
    """The baseline of the reward: PyTorch's defaults, or the fastest form at the candidate's precision."""

    PUBLISHED = "published"
    MATCHED = "matched"
