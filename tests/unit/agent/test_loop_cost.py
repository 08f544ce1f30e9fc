"""What the loop itself costs; `benchmarks/loop.py` measures it over 200 turns."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def loop() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "loop.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_the_loop", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_turn_is_cheap_and_memory_flat(loop: ModuleType) -> None:
    found = loop.measure(60)
    assert (found["outcome"], found["failed"]) == ("finished", [])
    # Of this process: what others do on the machine, and its disk, don't count here.
    late = statistics.median(found["process_ms"][-20:])
    assert late <= 20.0
    assert found["memory_mib"][-1] - found["memory_mib"][9] < 10 * found["transcript_mib"] + 10
    assert "Memory from turn 10 to turn 60" in loop.table(found)
