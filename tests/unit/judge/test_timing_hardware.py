"""The GPU's lock and the readings around a timing; no GPU needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import DeviceError
from cuda_agent.judge import clocks
from cuda_agent.judge.gpulock import gpu_lock, lock_path


def test_lock_path_is_safe() -> None:
    assert lock_path("GPU-1a/../x").name == "cuda-agent-GPU-1a____x.lock"


def test_lock_excludes_and_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "gpu.lock"
    hold = (
        "import sys, time; from pathlib import Path; from cuda_agent.judge.gpulock import gpu_lock\n"
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
    reading = clocks.parse_smi("1980, 3201, 0x0000000000000024, 3, 121.53, [N/A]\n")
    assert reading is not None
    assert reading.values == {"sm_mhz": 1980.0, "memory_mhz": 3201.0, "utilization": 3.0, "power_w": 121.53}
    assert reading.throttle_reasons == ("software power cap", "software thermal slowdown")
    assert clocks.parse_smi("no devices\n") is None and clocks.parse_smi("") is None
    assert clocks.read_clocks(None) is None


def test_foreign_load_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([(0, 0), (90, 100), (90, 100), (91, 200)])
    monkeypatch.setattr(clocks, "_cpu_ticks", lambda: next(readings))
    assert "cores" in (clocks.foreign_load(Device.CPU, None) or "")
    assert clocks.foreign_load(Device.CPU, None) is None
