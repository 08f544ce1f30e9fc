"""Detects work of other programs on the device, before a timing and during it.

GPU: the driver's utilisation covers the last second or so, in which our own verification may have run. So a probe
decides: a kernel of microseconds, launched while all our workers are idle. Where another process computes, the GPU
serves the processes in turn, and the probe waits for a time slice of about a millisecond. CPU: the system's count of
busy ticks, less those of our own processes.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.judge.profile.clocks import read_clocks
from cuda_agent.judge.profile.idle_load import process_ticks
from cuda_agent.workers.affinity import stat_ticks
from cuda_agent.workspace.descendants import descendants

#: per cent of time in which an idle GPU may run kernels. Above it another program may be at work.
BUSY_PERCENT = 10.0
#: a probe is late when it takes this many µs longer than an undisturbed one.
LATE_US = 200.0
#: share of late probes that means foreign work. The operating system delays a few.
LATE_SHARE = 0.10
LEAST_PROBES = 20
PROBES_EACH = 4
#: seconds to wait for our own processes on the CPU: a spare worker imports torch.
OWN_PATIENCE_S = 10.0
#: seconds to wait for the end of foreign work on the GPU.
FOREIGN_PATIENCE_S = 30.0
WAIT_S = 0.25


class GpuProbe:
    """Times a kernel of a few microseconds from this process, repeatedly. Call `look` while nothing of ours runs on the
    device, such as between bursts."""

    def __init__(self, run: Callable[[], Any] | None = None) -> None:
        """`run` launches and waits; by default it adds to one number."""
        self._run = run or _tiny_kernel()
        self._times_us: list[float] = []
        for _ in range(3):
            self._run()

    def look(self, probes: int = PROBES_EACH) -> None:
        """Takes a sample. The first launch isn't counted, since the GPU switches from the context of one of our
        workers."""
        self._run()
        for _ in range(probes):
            begin = time.perf_counter_ns()
            self._run()
            self._times_us.append((time.perf_counter_ns() - begin) / 1e3)

    def late_share(self) -> float:
        """The share of late probes; 0 while there are too few."""
        if len(self._times_us) < LEAST_PROBES:
            return 0.0
        usual = statistics.quantiles(self._times_us, n=10)[0]
        return sum(t > usual + LATE_US for t in self._times_us) / len(self._times_us)

    def neighbour(self) -> str | None:
        """Returns what other program was found, or None."""
        share = self.late_share()
        if share <= LATE_SHARE:
            return None
        return f"another program uses the GPU ({share:.0%} of {len(self._times_us)} probes had to wait for it)"


def _tiny_kernel() -> Callable[[], Any]:
    import torch

    number = torch.zeros(1, device="cuda")

    def run() -> None:
        number.add_(1)
        torch.cuda.synchronize()

    return run


class CpuShare:
    """Counts the cores that other programs use. `pids` are our processes, whose children count as ours."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = tuple(pids)
        self._before, self._mine = cpu_ticks(), self._own()

    def look(self) -> None: ...

    def neighbour(self) -> str | None:
        after, mine = cpu_ticks(), self._own()
        if self._before is None or after is None:
            return None
        busy = after[0] - self._before[0] - (mine - self._mine)
        return too_busy(busy, after[1] - self._before[1])

    def _own(self) -> int:
        """Returns the ticks of this process and of our workers. A process that ended meanwhile is lost."""
        found = {os.getpid()}
        for pid in self._pids:
            found |= {pid, *descendants(pid)}
        return sum(sum(process_ticks(pid)) for pid in found)


def foreign_load(device: Device, uuid: str | None) -> str | None:
    """Returns why a timing now would share the hardware, or None. Call it while our own workers are idle."""
    if device is Device.CPU:
        return _foreign_cpu_load(time.monotonic() + OWN_PATIENCE_S)
    reading = read_clocks(uuid)
    if reading is None or reading.values.get("utilization", 0.0) <= BUSY_PERCENT:
        return None
    probe = GpuProbe()
    for _ in range(LEAST_PROBES):
        probe.look(2)
        time.sleep(0.001)
    return probe.neighbour()


def _foreign_cpu_load(end: float, window_s: float = 0.2) -> str | None:
    """Returns what works on the machine while this process sleeps. Waits for workers that still start until `end`
    (monotonic seconds)."""
    while True:
        own = CpuShare([os.getpid()])
        before = cpu_ticks()
        time.sleep(window_s)
        after = cpu_ticks()
        if before is None or after is None:
            return None
        all_of_it = too_busy(after[0] - before[0], after[1] - before[1])
        if all_of_it is None or own.neighbour() is not None or time.monotonic() > end:
            return all_of_it


def too_busy(busy: int, total: int) -> str | None:
    """Returns a message where `busy` of all cores' `total` ticks exceed a tenth of the machine and a third of one core,
    since ticks are 10 ms."""
    cores = os.cpu_count() or 1
    if total <= 0 or busy / total < max(BUSY_PERCENT / 100, 0.34 / cores):
        return None
    return f"other programs use {busy / total * cores:.1f} of {cores} cores"


def cpu_ticks() -> tuple[int, int] | None:
    """Returns (busy, total) ticks of all cores since the machine started."""
    return stat_ticks().get("cpu")


def wait_for_quiet(device: Device, uuid: str | None) -> str | None:
    """Returns None when no other program computes, else what does, after a wait on a GPU."""
    end = time.monotonic() + FOREIGN_PATIENCE_S
    load = foreign_load(device, uuid)
    while load is not None and device is Device.CUDA and time.monotonic() < end:
        time.sleep(WAIT_S)
        load = foreign_load(device, uuid)
    return load
