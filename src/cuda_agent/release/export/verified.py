"""Describes the verified call of an export: shapes, types and nesting, from the reference worker."""

from pathlib import Path
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import TaskError
from cuda_agent.core.files import cache_dir
from cuda_agent.core.graph import TensorMeta
from cuda_agent.core.record import Record
from cuda_agent.judge import Reference
from cuda_agent.release.export.rewrite import wrapped_call
from cuda_agent.release.export.source import Finished
from cuda_agent.workers.buffers import ALIGNMENT, dense
from cuda_agent.workers.process import WorkerSettings
from cuda_agent.workers.requests.reference import TaskSpec
from cuda_agent.workers.roles import REFERENCE
from cuda_agent.workers.supply import WorkerSupply
from cuda_agent.workspace.sandbox import resolve_level
from cuda_agent.workspace.temporary import temporary_folder

_SEED = 1
#: the allowed relative error where the judge recorded none (outputs that aren't floating point).
_LEAST_BUDGET = 2e-6


class Verified(Record):
    """`verified.json` of an export. Specs nest as `workers.inside.task.pytree` says, without class names; strides of
    what isn't dense are row-major."""

    task: str
    task_key: str
    candidate_digest: str
    device: Device
    compute_capability: str | None
    precision: str
    frozen: bool
    init: dict[str, Any]
    inputs_spec: dict[str, Any]
    inputs: tuple[TensorMeta, ...]
    state: dict[str, TensorMeta]
    outputs_spec: dict[str, Any]
    outputs: tuple[TensorMeta, ...]
    #: how `forward` calls its only submodule (`wrapped_call`).
    call: dict[str, Any] | None
    alignment_bytes: int
    atol: float
    rtol: float
    error_budget: float


def describe_task(finished: Finished) -> TaskSpec:
    """Runs the task once in a sandboxed worker of the judge. Raises TaskError, DeviceError, SandboxError, StoreError,
    WorkerError."""
    options = finished.options
    hidden = tuple(path for path in (Path.cwd(), cache_dir()) if len(path.resolve().parts) > 1)
    level = resolve_level(options.sandbox)
    settings = WorkerSettings(options.device, level, options.host_memory_mib, hidden)
    with temporary_folder("judge") as folder:
        supply = WorkerSupply(settings, folder)
        try:
            worker = supply.start(REFERENCE)
            reference = Reference(worker, finished.task, options.precision, timeout_s=options.call_timeout_s)
            return reference.load(_SEED)
        finally:
            supply.close()


def verified(finished: Finished, spec: TaskSpec) -> Verified:
    """Returns the description of a verified call. Raises TaskError where an export can't check calls: values of other
    classes, or inputs that are changed in place."""
    task, evaluation = finished.task, finished.evaluation
    if spec.mutated:
        raise TaskError(f"{task.name} changes its inputs in place", "Only modules that leave them alone are exported")
    for what, nest in (("get_inputs() gives", spec.inputs_spec), ("forward() returns", spec.outputs_spec)):
        kind = _class_inside(nest)
        if kind:
            raise TaskError(f"{task.name}: {what} a {kind}", "Use plain lists, tuples and dicts of tensors")
    if "list" not in spec.inputs_spec:
        raise TaskError(f"{task.name}: get_inputs() gives no list", "Return forward's arguments as a list")
    trials = evaluation.verify.trials if evaluation.verify else ()
    gpus = evaluation.stack.gpus
    on_gpu = finished.options.device is Device.CUDA
    return Verified(
        task=task.name,
        task_key=task.key,
        candidate_digest=evaluation.candidate_digest,
        device=finished.options.device,
        compute_capability=gpus[0].compute_capability if on_gpu and gpus else None,
        precision=evaluation.precision.value,
        frozen=evaluation.verify is not None and evaluation.verify.frozen,
        init=spec.init,
        inputs_spec=spec.inputs_spec,
        inputs=tuple(map(dense, spec.inputs)),
        state={name: dense(meta) for name, meta in spec.state.items()},
        outputs_spec=spec.outputs_spec,
        outputs=tuple(map(dense, spec.outputs)),
        call=wrapped_call(task.source),
        alignment_bytes=ALIGNMENT[Device.CPU] if not on_gpu else 128,
        atol=task.atol,
        rtol=task.rtol,
        error_budget=max((trial.budget for trial in trials if trial.budget is not None), default=_LEAST_BUDGET),
    )


def _class_inside(spec: dict[str, Any]) -> str:
    """Returns the name of the first class that isn't a plain list, tuple or dict, or ""."""
    if "note" in spec:
        return str(spec["note"])
    nested = [*spec.get("list", ()), *spec.get("tuple", ()), *dict(spec.get("dict", {})).values()]
    return next((found for item in nested if (found := _class_inside(item))), "")
