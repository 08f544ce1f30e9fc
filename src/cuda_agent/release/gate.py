"""What a candidate must show before it is promoted: the typed form of gate.yaml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator

from cuda_agent.core.baselines import COMPILE, EAGER, forms
from cuda_agent.core.config import Configuration
from cuda_agent.core.enums import Precision
from cuda_agent.core.errors import UsageError

#: names whichever baseline was the fastest at the policy's precision.
MATCHED = "matched"
#: fewer say nothing of what differs from one process to the next.
LEAST_PROCESSES = 3
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class RebuildGate(Configuration):
    """`reproducible`: whether two clean builds must give the same bytes (nvcc doesn't promise it), only say so, or
    aren't compared."""

    reproducible: Literal["said", "required", "none"] = "said"


class VerificationGate(Configuration):
    """`trials`: sets of fresh inputs and weights. `scales`: also inputs ten thousand times larger and smaller.

    `shapes`: other sizes of the batch dimension, where the reference takes them: `safe`, the candidate is right there
    or refuses them with an exception; `required`, it is right. `batch_sizes`: which; by default 1 and one more than the
    task's. `sanitize`: `auto`, where there is a GPU. `most_atol`, `most_rtol`: tolerances that a task may ask for.
    """

    trials: int = Field(default=15, ge=1)
    scales: bool = True
    shapes: Literal["none", "safe", "required"] = "safe"
    batch_sizes: tuple[int, ...] = ()
    sanitize: Literal["auto", "required", "none"] = "auto"
    most_atol: float = Field(default=1e-2, ge=0)
    most_rtol: float = Field(default=1e-2, ge=0)


class SpeedGate(Configuration):
    """`margin`: the least that the lower 95 % bound of baseline time / candidate time must be, in each of `processes`
    cold processes, over each of `baselines` and `kernels` (name -> workspace or run of another kernel for the task).

    `missing`: what a baseline is that was asked for and can't be timed.
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
                raise ValueError(f"{name!r} is no name: use letters, digits, dots, dashes and underscores")
        return value


class WholeModelGate(Configuration):
    """`record`: the measurement of the whole model with this candidate in it, a file or the folder that holds
    `whole_model.json`; by default the one in the run directory, if there is one. `margin`: least lower bound of its
    speed-up."""

    record: Path | None = None
    margin: float = Field(default=1.0, gt=0)
    required: bool = False


class GateOptions(Configuration):
    """`lock`: the stack on which it must be shown; null: any. `precision`: the arithmetic that is allowed, whatever the
    run was made with. `regressions`: whether everything is tried again that ever failed for the task."""

    lock: Path | None = Path("stack.lock")
    precision: Precision = Precision.TF32
    sandbox: Literal["full", "any"] = "full"
    regressions: bool = True
    rebuild: RebuildGate = RebuildGate()
    verification: VerificationGate = VerificationGate()
    speed: SpeedGate = SpeedGate()
    whole_model: WholeModelGate = WholeModelGate()


_SECTIONS: dict[str, type[Configuration]] = {
    "rebuild": RebuildGate,
    "verification": VerificationGate,
    "speed": SpeedGate,
    "whole_model": WholeModelGate,
}


def load_gate(path: Path | None) -> GateOptions:
    """gate.yaml, its paths absolute from its own folder; without one the defaults, from here. Raises UsageError."""
    values: Any = {}
    if path is not None:
        try:
            values = yaml.safe_load(path.read_text()) or {}
        except OSError as error:
            raise UsageError(f"Can't read the gate {path}: {error.strerror}", "Check the path") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())[:200]}", "Correct it") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise UsageError(f"{path} holds no settings", "Write them as `name: value`, see docs/promotion.md")
    for name, section in _SECTIONS.items():
        inner = values.get(name)
        if name in values and not isinstance(inner, dict):
            raise UsageError(f"{path}: {name} holds no settings", "Write them below it, indented")
        if isinstance(inner, dict):
            values[name] = section.parse({str(key): value for key, value in inner.items()}, f"{name}.")
    return _from(path.parent if path is not None else Path(), GateOptions.parse(values))


def _from(folder: Path, gate: GateOptions) -> GateOptions:
    kernels = {name: (folder / path).absolute() for name, path in gate.speed.kernels.items()}
    record = gate.whole_model.record
    changes: dict[str, Any] = {"speed": gate.speed.model_copy(update={"kernels": kernels})}
    if record is not None:
        changes["whole_model"] = gate.whole_model.model_copy(update={"record": (folder / record).absolute()})
    if gate.lock is not None:
        changes["lock"] = (folder / gate.lock).absolute()
    return gate.model_copy(update=changes)
