"""The worker's runner on the CPU, in this process."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence

import pytest
import torch

from cuda_agent.workers.inside import screen as screen_module
from cuda_agent.workers.inside.cupti import Span, busy_ns
from cuda_agent.workers.inside.runner import OutputError, Runner, laid_out, lies_otherwise, null_program
from cuda_agent.workers.inside.screen import attempt, difference, screen
from cuda_agent.workers.requests.timed import ScreenConfigs, ScreenTimes, TriedConfigs, TryConfigs


def slots(count: int = 3) -> list[list[torch.Tensor]]:
    return [[torch.full((4, 8), float(i))] for i in range(count)]


def ring(count: int = 3) -> list[list[torch.Tensor]]:
    return [[torch.zeros(4, 8)] for _ in range(count)]


def test_run_times_each_call_and_fills_the_ring() -> None:
    runner, out = Runner("cpu"), ring()

    def program(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return x * 2

    found = runner.run(program, slots())
    runner.deliver(out)
    times = found.event_us
    assert found.waited_us == 0.0 and len(times) == 3 and all(2000 <= t < 60_000 for t in times)
    assert [float(o[0][0, 0]) for o in out] == [0.0, 2.0, 4.0]
    assert not gc.isenabled(), "the answer is sent under the judge's clock"
    runner.release()
    assert gc.isenabled()


def test_reused_storage_shows() -> None:
    runner, out, kept = Runner("cpu"), ring(), torch.empty(4, 8)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, 2, out=kept)

    runner.run(program, slots())
    runner.deliver(out)
    assert [float(o[0][0, 0]) for o in out] == [4.0, 4.0, 4.0]
    runner.release()


def test_nested_outputs_and_bad_ones() -> None:
    runner = Runner("cpu")
    pair = [[torch.zeros(4, 8), torch.zeros(4)] for _ in range(3)]
    runner.run(lambda x: {"a": x + 1, "b": (x.sum(1), None)}, slots())
    runner.deliver(pair)
    assert float(pair[2][0][0, 0]) == 3.0 and float(pair[2][1][0]) == 16.0
    for bad in (lambda x: (x, x), lambda x: x[0], lambda x: x.double(), lambda x: object()):
        with pytest.raises(OutputError):
            runner.run(bad, slots())
            runner.deliver(ring())
    runner.release()
    assert gc.isenabled()


def test_inputs_may_change_before_outputs_are_delivered() -> None:
    """But for an output that is an input: it is copied at once."""
    runner, given, out = Runner("cpu"), slots(), [[torch.zeros(4, 8), torch.zeros(4, 8)] for _ in range(3)]
    at = frozenset(slot[0].untyped_storage().data_ptr() for slot in given)
    runner.run(lambda x: (x + 1, x.view(4, 8)), given, inputs_at=at)
    for slot in given:
        slot[0].zero_()
    runner.deliver(out)
    assert [[float(t[0, 0]) for t in pair] for pair in out] == [[1.0, 0.0], [2.0, 1.0], [3.0, 2.0]]
    runner.release()


def test_null_program_is_fast_and_delivers() -> None:
    runner, out = Runner("cpu"), ring()
    fixed = [[torch.full((4, 8), 7.0)] for _ in range(3)]
    times = runner.run(null_program(fixed), slots()).event_us
    runner.deliver(out)
    assert max(times) < 1000 and float(out[1][0][0, 0]) == 7.0
    runner.release()


def test_queue_and_memory() -> None:
    runner = Runner("cpu")
    assert 0 < runner.queue(lambda x: x + 1, slots(), 50) < 5000
    assert runner.peak_memory(lambda x: x, slots()[0]) is None
    assert runner.busy(lambda x: x, slots()) is None
    runner.warmup(lambda x: x, slots(), calls=2, seconds=0.01)


def test_busy_time_is_the_union_of_spans() -> None:
    spans = [Span("kernel", "k", start, end) for start, end in ((0, 2), (1, 3), (10, 11), (10, 11))]
    assert busy_ns(spans) == 4
    assert busy_ns([]) == 0


class Tunable:
    """A program with settings: 0 slow, 1 fast, 2 wrong, 3 raises, 4 in between."""

    def __init__(self) -> None:
        self.mode = 0

    def set_config(self, config: Mapping[str, int]) -> None:
        self.mode = config["mode"]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep({0: 0.03, 1: 0.0005, 4: 0.006}.get(self.mode, 0.0))
        if self.mode == 3:
            raise RuntimeError("no such variant")
        return x + (1.1 if self.mode == 2 else 1.0)


def tried(tunable: Tunable, modes: Sequence[int], budget_s: float = 5.0) -> TriedConfigs:
    request = TryConfigs(program="candidate", configs=tuple({"mode": mode} for mode in modes), budget_s=budget_s)
    return attempt(Runner("cpu"), tunable, tunable.set_config, slots()[0], request)


def screened(tunable: Tunable, modes: Sequence[int], budget_s: float = 5.0) -> ScreenTimes:
    configs = tuple({"mode": mode} for mode in modes)
    request = ScreenConfigs(program="candidate", configs=configs, budget_s=budget_s, flush_bytes=0)
    return screen(Runner("cpu"), tunable, tunable.set_config, slots(), request)


def test_an_attempt_refuses_broken_settings() -> None:
    found = tried(Tunable(), (0, 1, 2, 3, 4))
    assert set(found.failures) == {"2", "3"} and not found.device_lost
    assert "differs" in found.failures["2"] and "no such variant" in found.failures["3"]


def test_an_attempt_begins_no_setting_after_its_budget() -> None:
    found = tried(Tunable(), [0] * 50, 0.1)
    assert "0" not in found.failures and "budget" in found.failures["49"]


def test_screen_ranks_settings() -> None:
    found = screened(Tunable(), (0, 1, 3, 4))
    assert set(found.failures) == {"2"}
    slow, fast, broken, middle = found.latency_us
    assert fast is not None and middle is not None and slow is not None and fast < middle < slow and broken is None


def test_screen_stops_with_its_budget() -> None:
    found = screened(Tunable(), [0] * 50, 0.1)
    assert found.latency_us[0] is not None and "budget" in found.failures["49"]


def test_difference_of_large_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen_module, "BLOCKS", 4)
    monkeypatch.setattr(screen_module, "BLOCK", 8)
    right = torch.arange(1.0, 1025.0).view(32, 32).t()
    end, between = right.clone(), right.clone()
    end[-1, -1] = between[0, 1] = 9e5
    assert difference([end], [right]) is not None, "the last block ends where the tensor does"
    assert difference([between], [right]) is None, "between two blocks"
    assert difference([between.contiguous()], [right]) is not None, "what lies otherwise is compared as a whole"


def test_difference() -> None:
    x = torch.tensor([1.0, float("inf"), 3.0])
    assert difference([x], [x.clone()]) is None
    assert difference([x], [torch.tensor([1.0, float("-inf"), 3.0])]) is not None
    assert difference([torch.tensor([1, 2])], [torch.tensor([1, 3])]) is not None
    assert difference([torch.zeros(0)], [torch.zeros(0)]) is None
    assert difference([torch.zeros(3)], [torch.ones(3)]) is not None
    assert difference([x, x], [x]) is not None


def test_an_output_in_another_order_is_copied_within_its_call() -> None:
    x, strides = torch.arange(12.0).view(3, 4), [[4, 1], [1]]
    program = laid_out(lambda x: (x.t().contiguous().t(), x.sum(1)), strides)
    first, second = program(x)
    assert first.stride() == (4, 1) and torch.equal(first, x) and torch.equal(second, x.sum(1))
    assert lies_otherwise((x.t().contiguous().t(), x.sum(1)), strides) == [0]
    assert lies_otherwise((x, x.sum(1)), strides) == []
    assert lies_otherwise(x[:, :1].t(), [[3, 1]]) == [0], "every second place"
    assert lies_otherwise(torch.empty(3, 1)[:, :1], [[1, 7]]) == [], "one element has no stride"
    assert lies_otherwise(x.t(), [[]]) == [], "the reference's own lies with gaps"
    for bad in (x, (x, x, x), object()):
        assert lies_otherwise(bad, strides) == []
