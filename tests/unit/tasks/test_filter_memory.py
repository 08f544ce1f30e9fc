"""Shares of the device's memory among tasks that are checked at a time."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

from cuda_agent.core.enums import Device
from cuda_agent.tasks.filter.memory import Memory
from cuda_agent.tasks.records import Cost, DatasetTask
from task_candidates import candidate


def holding(gib: float) -> DatasetTask:
    cost = Cost(flops=1.0, bytes=1.0, predicted_us=1.0, held_bytes=int(gib * 2**30))
    return candidate("linear", "return self.linear(x)").model_copy(update={"cost": cost})


def test_many_are_open_and_few_at_work() -> None:
    memory, door = Memory(Device.CUDA, 140 << 30), threading.Lock()
    everybody, together = threading.Barrier(14, timeout=20), threading.Barrier(4, timeout=1)
    at_work, most = 0, 0

    def one(_: int) -> None:
        nonlocal at_work, most
        task = holding(5.0)
        with memory.open(task):
            # All find room while none is at work.
            everybody.wait()
            with memory.active(task):
                with door:
                    at_work += 1
                    most = max(most, at_work)
                with contextlib.suppress(threading.BrokenBarrierError):
                    together.wait()
                with door:
                    at_work -= 1

    with ThreadPoolExecutor(14) as pool:
        list(pool.map(one, range(14)))
    assert most == 4


def test_one_that_asks_for_too_much_is_alone() -> None:
    memory, order = Memory(Device.CPU, 10 << 30), []
    big, small = holding(100.0), holding(0.1)

    def run() -> None:
        with memory.open(small), memory.active(small):
            order.append("small")

    with memory.open(big), memory.active(big):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(0.2)
        order.append("big")
    thread.join(10)
    assert order == ["big", "small"]
