"""A/A through real workers, and `doctor --timing` over it, with one short kernel on the CPU."""

from __future__ import annotations

import json

import pytest

from cuda_agent import judge
from cuda_agent.cli import machine
from cuda_agent.cli.main import run
from cuda_agent.core.enums import Device

pytestmark = [pytest.mark.integration, pytest.mark.alone]


def test_the_same_program_twice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(judge, "KERNELS", {Device.CPU: judge.KERNELS[Device.CPU][:1]})
    monkeypatch.setattr(machine, "LEAST", 2)
    monkeypatch.setattr(machine, "BUDGET_S", 0.6)
    assert run(["doctor", "--timing", "--device", "cpu", "--seconds", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["device"] == "cpu" and document["stack"]["torch"]
    (kernel,) = document["kernels"]
    # On a machine that others use, nothing more can be said of the numbers.
    assert kernel["evaluations"] >= 2 and kernel["void"] == 0 and 0.1 < kernel["median"] < 10
    assert kernel["worst"] >= 0 and 0 <= kernel["coverage"] <= 1 and kernel["latency_us"] > 20
