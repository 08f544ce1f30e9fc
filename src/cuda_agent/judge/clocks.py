"""What the hardware says about itself around a timing: clocks, throttle reasons, and work that isn't ours.

NVML through `pynvml` where it is installed (a millisecond), else `nvidia-smi` (a few tenths of a second).
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import time
from dataclasses import dataclass

from cuda_agent.core.enums import Device

#: NVML's bits. Idleness and application clocks are no throttling.
THROTTLE_BITS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
#: share of time in which a GPU that should be idle ran kernels, per cent, above which somebody else is at work.
BUSY_PERCENT = 10.0
#: drivers renamed the reasons' field; each knows at least one of the names.
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_FIELDS = "clocks.sm,clocks.mem,{reasons},utilization.gpu,power.draw,temperature.gpu"


@dataclass(frozen=True)
class ClockReading:
    """One reading. Clocks in MHz, power in W, temperature in °C, utilisation in per cent of the last moment."""

    values: dict[str, float]
    throttle_bits: int = 0

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        return tuple(name for bit, name in THROTTLE_BITS.items() if self.throttle_bits & bit)


def read_clocks(uuid: str | None) -> ClockReading | None:
    """The GPU's state now; None where there is no GPU or it can't be read."""
    if uuid is None:
        return None
    return _through_nvml(uuid) or _through_smi(uuid)


def _through_nvml(uuid: str) -> ClockReading | None:
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return ClockReading(
            {
                "sm_mhz": float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
                "memory_mhz": float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
                "utilization": float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
                "power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
                "temperature_c": float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
            },
            int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        )
    except pynvml.NVMLError:
        return None


def _smi(*arguments: str) -> str | None:
    binary = shutil.which("nvidia-smi")
    if binary is None:
        return None
    try:
        done = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _through_smi(uuid: str) -> ClockReading | None:
    for reasons in _REASONS:
        fields = _FIELDS.format(reasons=reasons)
        text = _smi(f"--id={uuid}", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
        if text:
            return parse_smi(text)
    return None


def parse_smi(text: str) -> ClockReading | None:
    """One line of `nvidia-smi --query-gpu` with `_FIELDS`; fields that the GPU doesn't report are left out."""
    parts = [part.strip() for part in text.strip().splitlines()[0].split(",")] if text.strip() else []
    if len(parts) != len(_FIELDS.split(",")):
        return None
    names = ("sm_mhz", "memory_mhz", "", "utilization", "power_w", "temperature_c")
    values, bits = {}, 0
    for name, part in zip(names, parts, strict=True):
        try:
            if name:
                values[name] = float(part)
            else:
                bits = int(part, 16)
        except ValueError:
            continue
    return ClockReading(values, bits)


def foreign_load(device: Device, uuid: str | None, *, patience_s: float = 1.2) -> str | None:
    """Why a timing now would share the hardware, None when it wouldn't. Called while our own workers are idle.

    A busy GPU is asked again after `patience_s`, since utilisation covers up to the last second, which our own
    verification may have filled.
    """
    if device is Device.CPU:
        return _foreign_cpu_load()
    for attempt in range(2):
        reading = read_clocks(uuid)
        busy = reading.values.get("utilization", 0.0) if reading else 0.0
        if busy <= BUSY_PERCENT:
            return None
        if attempt == 0:
            time.sleep(patience_s)
    return f"another program uses the GPU ({busy:.0f} % of the time)"


def _foreign_cpu_load(window_s: float = 0.2) -> str | None:
    """Share of all cores that worked while this process slept."""
    before = _cpu_ticks()
    time.sleep(window_s)
    after = _cpu_ticks()
    if before is None or after is None:
        return None
    busy, total = after[0] - before[0], after[1] - before[1]
    cores = os.cpu_count() or 1
    # A tenth of the machine, but at least a third of one core: ticks are 10 ms.
    if total <= 0 or busy / total < max(BUSY_PERCENT / 100, 0.34 / cores):
        return None
    return f"other programs use {busy / total * cores:.1f} of {cores} cores"


def _cpu_ticks() -> tuple[int, int] | None:
    """(busy, total) ticks of all cores since the machine started."""
    try:
        with open("/proc/stat") as stream:
            fields = [int(word) for word in stream.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    if len(fields) < 5:
        return None
    return sum(fields) - fields[3] - fields[4], sum(fields)
