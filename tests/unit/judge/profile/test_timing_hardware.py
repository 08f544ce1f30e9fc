"""The GPU's lock and the readings around a timing; no GPU needed."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import DeviceError
from cuda_agent.judge.profile import clocks
from cuda_agent.judge.profile import foreign_load as load
from cuda_agent.judge.profile.clocks import ClockReading
from cuda_agent.workers import affinity as cores
from cuda_agent.workers.gpulock import gpu_lock, lock_path


def test_lock_path_is_safe() -> None:
    assert lock_path("GPU-1a/../x").name == "cuda-agent-GPU-1a____x.lock"


def test_lock_excludes_and_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "gpu.lock"
    hold = (
        "import sys, time; from pathlib import Path; from cuda_agent.workers.gpulock import gpu_lock\n"
        "with gpu_lock('x', path=Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", hold, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        told: list[str] = []
        with (
            pytest.raises(DeviceError, match=f"process {holder.pid}"),
            gpu_lock("x", path=path, timeout_s=0.12, waiting=told.append),
        ):
            raise AssertionError("not free")
        assert told == [f"process {holder.pid}"]
    finally:
        holder.kill()
        holder.wait()
    with gpu_lock("x", path=path, timeout_s=5):
        pass


def test_lock_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "gpu.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(DeviceError), gpu_lock("x", path=tmp_path / "gpu.lock"):
        pass
    assert (tmp_path / "victim").read_text() == "precious"


def test_smi_line() -> None:
    reading = clocks.parse_smi("1980, 3201, 3, 121.53, [N/A], 0x0000000000000024\n")
    assert reading is not None
    assert reading.values == {"sm_mhz": 1980.0, "memory_mhz": 3201.0, "utilization": 3.0, "power_w": 121.53}
    assert reading.throttle_reasons == ("software power cap", "software thermal slowdown")
    assert clocks.parse_smi("no devices\n") is None and clocks.parse_smi("") is None
    assert clocks.read_clocks(None) is None


def test_log_of_clocks() -> None:
    log = clocks.ClockLog(None)
    log.read()
    log.watch()
    assert log.summary() == {} and log.throttle_reasons() == ()
    first, second, third = ({"sm_mhz": mhz, "power_w": 100.0} for mhz in (1200.0, 1500.0, 1980.0))
    log.readings = [ClockReading(first), ClockReading(second, 0x04), ClockReading(third)]
    assert log.summary() == {
        "sm_mhz_before": 1200.0, "power_w_before": 100.0, "sm_mhz_after": 1980.0, "power_w_after": 100.0,
        "sm_mhz_least": 1500.0,
    }  # fmt: skip
    assert log.throttle_reasons() == ("software power cap",), "what was seen in between counts"


def test_foreign_load_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, quiet = [(0, 0), (90, 100)], [(90, 100), (91, 200)]
    # A look reads the ticks before and after; the share of our own processes is kept beside it.
    readings = iter([busy[0], *busy, busy[1], quiet[0], *quiet, quiet[1]])
    monkeypatch.setattr(load, "cpu_ticks", lambda: next(readings))
    assert "cores" in (load.foreign_load(Device.CPU, None) or "")
    assert load.foreign_load(Device.CPU, None) is None


def test_our_own_starting_workers_are_waited_for() -> None:
    working = subprocess.Popen(
        [sys.executable, "-c", "import time\nend = time.monotonic() + 1.2\nwhile time.monotonic() < end: pass"]
    )
    try:
        begin = time.monotonic()
        found = load.foreign_load(Device.CPU, None)
        assert found is not None or time.monotonic() - begin > 0.8, "quiet only after it ended"
    finally:
        working.kill()
        working.wait()


def test_our_own_work_is_no_neighbour() -> None:
    """A child that spins is ours; the same child unannounced is somebody else."""
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        ours, others = load.CpuShare([spinning.pid]), load.CpuShare([])
        time.sleep(0.8)
        assert others.neighbour() is not None
        announced = ours.neighbour()
        assert announced is None or announced != others.neighbour(), "other tests may run beside this one"
    finally:
        spinning.kill()
        spinning.wait()


def test_probe_tells_a_neighbour_from_a_hiccup(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]

    def probe(waits_ms: Iterable[float]) -> load.GpuProbe:
        """Each run takes 20 µs and the next of these."""
        waiting = iter(waits_ms)

        def run() -> None:
            now[0] += 20_000 + int(1e6 * next(waiting))

        return load.GpuProbe(run)

    monkeypatch.setattr("cuda_agent.judge.profile.foreign_load.time", SimpleNamespace(perf_counter_ns=lambda: now[0]))
    quiet = probe([0.0] * 4 + [0.0] * 45 + [3.0] + [0.0] * 99)
    for _ in range(9):
        quiet.look()
    assert quiet.neighbour() is None
    shared = probe(itertools.cycle([0.0, 0.0, 0.0, 2.0]))
    shared.look()
    assert shared.neighbour() is None, "too few probes to say so"
    for _ in range(9):
        shared.look()
    assert "another program" in (shared.neighbour() or "")


def test_cores_that_nobody_uses() -> None:
    before = {0: (100, 1000), 1: (100, 1000), 2: (100, 1000), 3: (100, 1000)}
    after = {0: (150, 1050), 1: (101, 1050), 2: (110, 1050), 3: (121, 1050), 4: (0, 50)}
    assert cores.free_cores(before, after) == {1, 2}
    assert cores.free_cores(before, before) == set(before), "no tick has passed"
    found = cores.Cores(random.Random(1), near={10**6}).pick()
    assert found is None or found in cores.core_ticks(), "no core there is ours, so all are"
    assert cores.parse_list("0-2,8\n") == {0, 1, 2, 8} and cores.parse_list("") is None
