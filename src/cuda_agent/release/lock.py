"""The stack lock: a text file with everything that times depend on. A team commits it, compares it and enforces it."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cuda_agent.core.baselines import forms
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import CudaAgentError, LockMismatch, StoreError, UsageError
from cuda_agent.core.files import write_durably
from cuda_agent.core.hashing import digest_files
from cuda_agent.core.record import StoredRecord
from cuda_agent.core.stack import output_lines, read_stack
from cuda_agent.judge import find_toolchain

_HEAD = (
    "# What times depend on. `cuda-agent COMMAND --locked` refuses another stack; `cuda-agent lock` renews this file.\n"
)
_GPU_SETTINGS = {
    "ecc": "ecc.mode.current",
    "mig": "mig.mode.current",
    "application_sm_clock": "clocks.applications.graphics",
    "application_memory_clock": "clocks.applications.memory",
}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
#: parts of this package that decide what is measured and how.
_DECIDING = ("core", "judge", "workers", "workspace", "reward.py")
_PATH_OPTIONS = ("-isystem", "-I")


class StackDifference(NamedTuple):
    """A fact that differs from the lock. None means that the fact is missing."""

    name: str
    locked: Any
    here: Any

    def __str__(self) -> str:
        return f"{self.name} is {_shown(self.here)}, locked {_shown(self.locked)}"


class StackLock(StoredRecord):
    """A stack. `hardware`, `software` and `compile` hold nested facts by name. Serial numbers are left out, so that a
    lock is valid on equal machines."""

    file_name = "stack.lock"
    hardware: dict[str, Any]
    software: dict[str, Any]
    compile: dict[str, Any]

    def to_yaml(self) -> str:
        text: str = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=110)
        return _HEAD + text

    @classmethod
    def from_yaml(cls, text: str, *, where: str) -> "StackLock":
        """Parses a lock. Raises StoreError where the text isn't one, or has another schema version."""
        try:
            values = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise StoreError(f"{where} is not YAML: {one_line(error)}", "Make it again: cuda-agent lock") from None
        return cls.from_json(json.dumps(values, default=str), where=where)

    @classmethod
    def load(cls, path: Path) -> "StackLock":
        """Reads a lock. Raises UsageError where the file is missing, StoreError where it can't be read."""
        try:
            return cls.from_yaml(path.read_text(), where=str(path))
        except (FileNotFoundError, IsADirectoryError):
            raise UsageError(f"There is no lock {path}", "Make one where it should hold: cuda-agent lock") from None
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"Can't read {path}: {one_line(error)}", "Check the path") from None

    def save(self, path: Path) -> None:
        """Writes the lock. Raises StoreError."""
        write_durably(path, self.to_yaml())

    def differences(self, here: "StackLock") -> tuple[StackDifference, ...]:
        """Returns the facts that differ from this lock, in its order."""
        mine, theirs = dict(_flat(self)), dict(_flat(here))
        names = dict.fromkeys((*mine, *theirs))
        found = (StackDifference(name, mine.get(name), theirs.get(name)) for name in names)
        return tuple(one for one in found if one.locked != one.here)


def read_lock() -> StackLock:
    """Reads the stack of this machine. It works without a GPU, and doesn't import torch."""
    stack = read_stack().model_dump(mode="json")
    gpus = [{name: value for name, value in gpu.items() if name != "uuid"} for gpu in stack["gpus"]]
    for gpu, settings in zip(gpus, _gpu_settings(len(gpus)), strict=True):
        gpu |= settings
    hardware = {"gpus": gpus, "cpu": stack["cpu"], "cpu_cores": stack["cpu_cores"], "cpu_governor": _governor()}
    names = ("driver", "cuda_compiler", "cxx_compiler", "torch", "cudnn", "triton", "python", "cuda_agent")
    software = {name: stack[name] for name in names} | {"judge": judge_digest()}
    compiled = {
        form.name: ", ".join(f"{name}={value!r}" for name, value in form.compile.items()) or "default"
        for form in forms().values()
        if form.compile is not None
    }
    compile_settings: dict[str, Any] = {"torch.compile": compiled}
    compile_settings |= _flags(gpus[0]["compute_capability"] if gpus else None)
    compile_settings["environment"] = {name: os.environ[name] for name in _THREADS if name in os.environ}
    return StackLock(hardware=hardware, software=software, compile=compile_settings)


def check_locked(path: Path) -> StackLock:
    """Reads a lock and compares it with this machine. Raises LockMismatch, which names every difference, UsageError and
    StoreError."""
    lock = StackLock.load(path)
    found = lock.differences(read_lock())
    if found:
        raise LockMismatch(
            f"This isn't the stack of {path}: {'; '.join(map(str, found))}",
            "Use the locked stack, or renew the lock and all numbers with it: cuda-agent lock",
        )
    return lock


def judge_digest() -> str:
    """Returns the digest of this package's sources that decide what is measured. The version alone doesn't tell two
    checkouts apart."""
    root = Path(__file__).resolve().parents[1]
    tops = [root / name for name in _DECIDING]
    paths = [path for top in tops for path in ([top] if top.is_file() else sorted(top.rglob("*.py")))]
    return digest_files({path.relative_to(root).as_posix(): path.read_text() for path in paths})[:16]


def _flags(capability: str | None) -> dict[str, str]:
    """Returns the flags of the candidates' compilers that are installed, without paths."""
    found: dict[str, str] = {}
    try:
        host = find_toolchain(Device.CPU)
        found["g++ kernels"] = _without_paths(host.cxx_command(binding=False))
        found["g++ bindings"] = _without_paths(host.cxx_command(binding=True))
        if capability is not None:
            found["nvcc"] = _without_paths(find_toolchain(Device.CUDA, capability).nvcc_command())
    except CudaAgentError:
        # A machine without a compiler has a stack too; `doctor` says what is missing.
        pass
    return found


def _without_paths(command: Sequence[str]) -> str:
    kept, options = [], iter(command[1:])
    for option in options:
        if option in _PATH_OPTIONS:
            next(options, None)
        elif not option.startswith("-ccbin"):
            kept.append(option)
    return " ".join(kept)


def _gpu_settings(count: int) -> list[dict[str, str]]:
    """Returns the settings of each GPU besides its power limit; none where the driver doesn't know one of them."""
    query = f"--query-gpu={','.join(_GPU_SETTINGS.values())}"
    lines = output_lines("nvidia-smi", query, "--format=csv,noheader") if count else []
    rows = [[part.strip() for part in line.split(",")] for line in lines]
    if len(rows) != count or any(len(row) != len(_GPU_SETTINGS) for row in rows):
        return [{} for _ in range(count)]
    return [dict(zip(_GPU_SETTINGS, row, strict=True)) for row in rows]


def _governor() -> str | None:
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        return None


def _flat(lock: StackLock) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of every fact; a name is like `gpus[0].name`."""
    for section in (lock.hardware, lock.software, lock.compile):
        yield from _leaves("", section)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list):
        yield f"{name}.count", len(value)
        for index, inner in enumerate(value):
            yield from _leaves(f"{name}[{index}]", inner)
    else:
        yield name, value


def _shown(value: Any) -> str:
    return "missing" if value is None else repr(value)


def one_line(error: Exception) -> str:
    """Returns an error's message on one line of at most 200 characters."""
    return " ".join(str(error).split())[:200]
