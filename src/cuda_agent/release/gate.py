"""The settings of the promotion gate: the typed form of gate.yaml."""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from cuda_agent.core.baselines import COMPILE, EAGER, MATCHED, forms
from cuda_agent.core.config import Configuration
from cuda_agent.core.enums import Precision
from cuda_agent.core.settings import Settings

#: fewer processes wouldn't show how times differ between processes.
LEAST_PROCESSES = 3
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class RebuildGate(Configuration):
    """`reproducible` says whether two clean builds must give the same bytes (`required`), are compared for the report
    (`said`), or aren't compared (`none`). nvcc doesn't guarantee equal bytes."""

    reproducible: Literal["said", "required", "none"] = "said"


class VerificationGate(Configuration):
    """`trials` is the number of sets of fresh inputs and weights. `scales` adds inputs ten thousand times larger and
    smaller.

    `shapes` tries other sizes of the batch dimension that the reference accepts: with `safe` the candidate must be
    right or raise an exception, with `required` it must be right. `batch_sizes` are these sizes, by default 1 and one
    more than the task's. `sanitize: auto` runs compute-sanitizer where there is a GPU. `most_atol` and `most_rtol` are
    the largest tolerances that a task may have.
    """

    trials: int = Field(default=15, ge=1)
    scales: bool = True
    shapes: Literal["none", "safe", "required"] = "safe"
    batch_sizes: tuple[int, ...] = ()
    sanitize: Literal["auto", "required", "none"] = "auto"
    most_atol: float = Field(default=1e-2, ge=0)
    most_rtol: float = Field(default=1e-2, ge=0)


class SpeedGate(Configuration):
    """`margin` is the least lower 95 % bound of baseline time / candidate time, in each of `processes` cold processes,
    over each of `baselines` and `kernels` (name -> workspace or run of another kernel for the task).

    `missing` says whether a baseline that can't be timed fails the gate or is only noted.
    """

    processes: int = Field(default=LEAST_PROCESSES, ge=LEAST_PROCESSES)
    margin: float = Field(default=1.05, gt=0)
    baselines: tuple[str, ...] = (EAGER, COMPILE, MATCHED, "autotune")
    kernels: dict[str, Path] = Field(default_factory=dict)
    timing_budget_s: float = Field(default=10.0, gt=0)
    compile_timeout_s: float = Field(default=900.0, gt=0)
    missing: Literal["fail", "note"] = "fail"

    @field_validator("baselines")
    @classmethod
    def _are_known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = (MATCHED, *forms())
        for name in value:
            if name not in known:
                raise ValueError(f"{name!r} is no baseline: {', '.join(sorted(known))}")
        return value

    @field_validator("kernels")
    @classmethod
    def _are_names(cls, value: dict[str, Path]) -> dict[str, Path]:
        for name in value:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid name: use letters, digits, dots, dashes and underscores")
        return value


class WholeModelGate(Configuration):
    """`record` is the measurement of the whole model with this candidate in it: `whole_model.json` or its folder, by
    default the run directory. `margin` is the least lower bound of its speed-up. With `required` a missing record fails
    the gate."""

    record: Path | None = None
    margin: float = Field(default=1.0, gt=0)
    required: bool = False


class GateOptions(Configuration):
    """`lock` is the stack that the gate needs, or null for any. `precision` is the allowed arithmetic and overrides the
    run's. `regressions` tries all inputs again on which candidates for the task have failed."""

    lock: Path | None = Path("stack.lock")
    precision: Precision = Precision.TF32
    sandbox: Literal["full", "any"] = "full"
    regressions: bool = True
    rebuild: RebuildGate = RebuildGate()
    verification: VerificationGate = VerificationGate()
    speed: SpeedGate = SpeedGate()
    whole_model: WholeModelGate = WholeModelGate()


def load_gate(path: Path | None) -> GateOptions:
    """Reads gate.yaml, or returns the defaults without one. Paths are relative to the file's folder, or to the current
    one. Raises UsageError."""
    folder, gate = path.parent if path is not None else Path(), Settings(path).parse(GateOptions)
    kernels = {name: (folder / path).absolute() for name, path in gate.speed.kernels.items()}
    record = gate.whole_model.record
    changes: dict[str, Any] = {"speed": gate.speed.model_copy(update={"kernels": kernels})}
    if record is not None:
        changes["whole_model"] = gate.whole_model.model_copy(update={"record": (folder / record).absolute()})
    if gate.lock is not None:
        changes["lock"] = (folder / gate.lock).absolute()
    return gate.model_copy(update=changes)
