"""Reads the GPU's clocks and throttle reasons around a timing and during it.

It uses NVML through `pynvml` where that is installed (a millisecond), else `nvidia-smi` (a few tenths of a second).
"""

import contextlib
import importlib
import time
from dataclasses import dataclass, field

from cuda_agent.core.assets import tables
from cuda_agent.core.stack import output_lines

#: seconds between two readings during a timing.
WATCH_S = 0.25


@dataclass(frozen=True)
class ClockReading:
    """One reading. Clocks are in MHz, power in W, temperature in °C, utilisation in per cent of the last moment."""

    values: dict[str, float]
    throttle_bits: int = 0

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        return tuple(name for bit, name in tables(__file__)["throttle_bits"].items() if self.throttle_bits & bit)


def read_clocks(uuid: str | None) -> ClockReading | None:
    """Returns the GPU's present state, or None where there is no GPU or it can't be read."""
    if uuid is None:
        return None
    return _through_nvml(uuid) or _through_smi(uuid)


@dataclass
class ClockLog:
    """Readings before, during and after a timing. During a timing only NVML is used, since a command would disturb."""

    uuid: str | None
    readings: list[ClockReading] = field(default_factory=list)
    _last_s: float = 0.0

    def read(self) -> None:
        self._keep(read_clocks(self.uuid))

    def watch(self) -> None:
        """Takes a reading if the last one is old enough."""
        now = time.monotonic()
        if self.uuid is None or now - self._last_s < WATCH_S:
            return
        self._last_s = now
        self._keep(_through_nvml(self.uuid))

    def _keep(self, reading: ClockReading | None) -> None:
        if reading is not None:
            self.readings.append(reading)

    def summary(self) -> dict[str, float]:
        """Returns `<key>_before`, `<key>_after`, and `sm_mhz_least` of all readings."""
        if not self.readings:
            return {}
        ends = (("before", self.readings[0]), ("after", self.readings[-1]))
        found = {f"{key}_{when}": value for when, reading in ends for key, value in reading.values.items()}
        clocks = [reading.values["sm_mhz"] for reading in self.readings[1:] if "sm_mhz" in reading.values]
        return found | ({"sm_mhz_least": min(clocks)} if clocks else {})

    def throttle_reasons(self) -> tuple[str, ...]:
        return tuple(sorted({reason for reading in self.readings for reason in reading.throttle_reasons}))


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


def _through_smi(uuid: str) -> ClockReading | None:
    for reasons in tables(__file__)["reasons"]:
        fields = ",".join((*tables(__file__)["fields"].values(), reasons))
        found = output_lines("nvidia-smi", f"--id={uuid}", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
        if found:
            return parse_smi(found[0])
    return None


def parse_smi(text: str) -> ClockReading | None:
    """Parses one line of `nvidia-smi --query-gpu`: the fields of the table, then the throttle reasons. Fields that the
    GPU doesn't report are left out."""
    *parts, reasons = (part.strip() for part in text.split(","))
    names = tables(__file__)["fields"]
    if len(parts) != len(names):
        return None
    values = {}
    for name, part in zip(names, parts, strict=True):
        with contextlib.suppress(ValueError):
            values[name] = float(part)
    try:
        return ClockReading(values, int(reasons, 16))
    except ValueError:
        return ClockReading(values)
