"""The least work that a call needs, and the device's roofline, which is measured once and kept."""

from pathlib import Path

from pydantic import ValidationError

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.files import cache_dir, write_durably
from cuda_agent.core.hashing import digest_text
from cuda_agent.core.inspection import LeastWork, Roofline
from cuda_agent.core.stack import read_stack
from cuda_agent.judge.inspection import limit
from cuda_agent.judge.profile.roofline import work_of
from cuda_agent.judge.resources import Resources
from cuda_agent.workers.buffers import extent_bytes


def work_needed(session: Resources) -> LeastWork:
    """Returns the least work of one call of the task. Operations are 0 where the graph can't be captured."""
    spec = session.reference.spec
    total = sum(extent_bytes(meta) for meta in (*spec.inputs, *spec.outputs, *spec.state.values()))
    graph = session.known_graph()
    if graph is None:
        return LeastWork(bytes=total, product_flops=0, other_flops=0)
    products = work_of(graph, spec.outputs).flops
    return LeastWork(bytes=total, product_flops=products, other_flops=limit.other_flops(graph))


def device_roofline(device: Device) -> Roofline | None:
    """Returns the device's roofline, measured now in this process if it isn't known. The caller must have the device to
    itself. None: it can't be measured."""
    known = known_roofline(device)
    if known is not None:
        return known
    from cuda_agent.workers.inside.inspected import measure_roofline

    return keep_roofline(device, measure_roofline(device))


def _roofline_file(device: Device) -> Path:
    stack = read_stack()
    parts = [stack.gpus[0].uuid, stack.driver or ""] if device is Device.CUDA and stack.gpus else [stack.cpu]
    key = digest_text(*parts, str(stack.cpu_cores), stack.torch or "")
    return cache_dir() / f"roofline-{key[:16]}.json"


def known_roofline(device: Device) -> Roofline | None:
    """Returns the roofline that was measured on this machine, or None."""
    try:
        return Roofline.model_validate_json(_roofline_file(device).read_text())
    except (OSError, ValidationError):
        return None


def keep_roofline(device: Device, measured: object) -> Roofline | None:
    """Stores a measured roofline. Returns None where it isn't one or can't be written."""
    try:
        roofline = Roofline.model_validate(measured)
        write_durably(_roofline_file(device), roofline.model_dump_json())
    except (ValidationError, CudaAgentError):
        return None
    return roofline
