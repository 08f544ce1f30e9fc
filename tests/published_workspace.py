"""A task and a candidate in the published workspace's layout, for either device."""

from __future__ import annotations

from pathlib import Path

from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate, Task

_FOLDER = Path(__file__).parent / "data" / "axpby"


def axpby_task() -> Task:
    return Task(name="axpby", source=(_FOLDER / "model.py").read_text())


def axpby_candidate(device: Device) -> Candidate:
    kernels = _FOLDER / f"kernels_{device.value}"
    files = {f"kernels/{path.name}": path.read_text() for path in kernels.iterdir()}
    return Candidate(files={"model_new.py": (_FOLDER / "model_new.py").read_text(), **files})
