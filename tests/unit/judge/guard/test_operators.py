"""Operators at the dispatcher: what the worker records, and what the judge makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from cuda_agent.core.enums import Device
from cuda_agent.judge.guard.operators import FORWARD, LOADING, OperatorLog
from cuda_agent.workers.inside.dispatch import recorded
from cuda_agent.workers.requests.candidate import DispatchRecord

X = torch.arange(12.0).view(3, 4)


def rules(call: Callable[[], Any], when: str = FORWARD, device: Device = Device.CUDA) -> set[str]:
    with torch.no_grad(), recorded() as operators:
        output = call()
    log = OperatorLog(device)
    log.note(operators.report(), when, unseen_outputs=operators.unseen([output]))
    return {violation.rule for violation in log.violations()}


HONEST: dict[str, Callable[[], Any]] = {
    "allocation": lambda: torch.empty_like(X),
    "zeros": lambda: torch.zeros(3, dtype=torch.half),
    "views of an allocation": lambda: X.new_empty(12).view(3, 4).t()[1:].squeeze(),
    "copy to another layout": lambda: X.t().contiguous(),
}
CHEATING: dict[str, tuple[Callable[[], Any], str]] = {
    "compute": (lambda: torch.relu(X), "torch_compute"),
    "product": (lambda: X @ X.t(), "torch_compute"),
    "in place": (lambda: torch.zeros(3).add_(1), "torch_compute"),
    "conversion": (lambda: X.half(), "torch_compute"),
    "conversion by copying": (lambda: torch.empty(3, 4, dtype=torch.half).copy_(X), "torch_compute"),
    "random": (lambda: torch.empty(3).normal_(), "torch_compute"),
    "an output from elsewhere": (lambda: X, "missing_records"),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_calls_pass(name: str) -> None:
    assert rules(HONEST[name]) == set()


@pytest.mark.parametrize("name", CHEATING)
def test_cheating_calls_are_convicted(name: str) -> None:
    call, rule = CHEATING[name]
    assert rule in rules(call)


def test_a_product_is_the_vendors_on_the_cpu() -> None:
    assert rules(lambda: torch.mm(X, X.t()), device=Device.CPU) == set()


def test_weights_may_be_converted_while_they_are_loaded() -> None:
    linear = torch.nn.Linear(3, 3)
    state = {name: value.clone() for name, value in linear.state_dict().items()}

    def load() -> Any:
        linear.load_state_dict(state)
        return linear.weight.t().contiguous().to(torch.bfloat16)

    assert rules(load, LOADING) == set()
    assert rules(lambda: load() @ X[:, :3].bfloat16(), LOADING) == {"torch_compute"}


def test_switching_the_recorder_off_shows() -> None:
    with recorded() as operators:
        hidden = _disable_current_modes()
        hidden.__enter__()
        torch.relu(X)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not operators.report().intact
    # Leaving puts the recorder back, which no other test of this process may meet.
    hidden.__exit__(None, None, None)
    while torch._C._len_torch_dispatch_stack():
        torch._C._pop_torch_dispatch_stack(None)


@pytest.mark.parametrize(("intact", "unseen_outputs"), [(False, 0), (True, 1)])
def test_missing_records_convict(intact: bool, unseen_outputs: int) -> None:
    log = OperatorLog(Device.CUDA)
    log.note(DispatchRecord(operators={}, intact=intact), FORWARD, unseen_outputs=unseen_outputs)
    (violation,) = log.violations()
    assert (violation.rule, violation.layer) == ("missing_records", "dispatch")


def test_counts_add_up_over_calls() -> None:
    log = OperatorLog(Device.CUDA)
    for _ in range(2):
        log.note(DispatchRecord(operators={"aten.empty.memory_format": 2}, intact=True), FORWARD)
    log.note(DispatchRecord(operators={"aten.copy_.default": 1}, intact=True), LOADING)
    assert log.counts == {"aten.empty.memory_format": 4}
    assert log.violations() == ()


@pytest.mark.parametrize("seeded", [True, False])
def test_only_a_seeded_task_lets_forward_draw(seeded: bool) -> None:
    with recorded() as operators:
        output = torch.randn(3)
    log = OperatorLog(Device.CPU, seeded=seeded)
    log.note(operators.report(), FORWARD, unseen_outputs=operators.unseen([output]))
    assert bool(log.violations()) is not seeded
