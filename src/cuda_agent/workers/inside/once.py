"""Calls a candidate once, from files, for compute-sanitizer; its argument is the folder.

FOLDER/call.json is {device, library, model, init, inputs_spec, inputs: [...], state: {name: ...}}, where a tensor is
{file, shape, strides, dtype} with its bytes in that file. CUDA IPC isn't used, and torch's caching allocator is off
(the judge sets that), so every tensor has its own allocation, whose bounds the tool knows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from cuda_agent.core.enums import Device
from cuda_agent.workers.buffers import synchronize
from cuda_agent.workers.inside.candidate import LoadedCandidate
from cuda_agent.workers.inside.main import Context
from cuda_agent.workers.inside.runner import Program
from cuda_agent.workers.inside.task.pytree import unflatten
from cuda_agent.workers.requests import Start
from cuda_agent.workers.requests.candidate import LoadCandidate

#: exit code of a failed call, whose message is in the log.
FAILED = 3


def main() -> None:
    run_to_the_end(_call)


def _call(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    call = read_call(folder)
    program, inputs = load_call(folder, call)
    with torch.no_grad():
        program(*inputs)
    synchronize(Device(call["device"]))
    return 0


def read_call(folder: Path) -> dict[str, Any]:
    """Returns the description of the call."""
    call: dict[str, Any] = json.loads((folder / "call.json").read_text())
    return call


def load_call(folder: Path, call: dict[str, Any]) -> tuple[Program, list[Any]]:
    """Starts the device and returns the candidate's model with its weights, and the arguments of the call."""
    device = Device(call["device"])
    context = Context()
    context.start(Start(device=device))
    candidate = LoadedCandidate(context)
    candidate.load(LoadCandidate(library=call["library"], model=call["model"], init=call["init"]))
    candidate.model.load_state_dict({name: _read_tensor(folder, wire, device) for name, wire in call["state"].items()})
    inputs = [_read_tensor(folder, wire, device) for wire in call["inputs"]]
    return candidate.model, unflatten(call["inputs_spec"], inputs)


def _read_tensor(folder: Path, wire: dict[str, Any], device: Device) -> Any:
    """Returns the tensor in a file, on the device, with its strides."""
    dtype, shape = getattr(torch, wire["dtype"]), wire["shape"]
    path = folder / wire["file"]
    if path.stat().st_size == 0:
        return torch.empty(shape, dtype=dtype, device=device.value)
    raw = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    return raw.view(dtype).as_strided(shape, wire["strides"]).to(device.value, copy=True)


def run_to_the_end(program: Callable[[list[str]], int]) -> NoReturn:
    """Ends this process with the program's exit code, or with FAILED where it raises. The interpreter's own end is
    avoided, since a candidate's exit handlers would run there."""
    try:
        code = program(sys.argv[1:])
    except BaseException as error:  # noqa: BLE001 - the boundary to the candidate's code
        sys.stderr.write(f"{type(error).__name__}: {error}\n"[:4096])
        code = FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
