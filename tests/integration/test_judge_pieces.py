"""The answers of a large task are compared piece by piece: the same verdicts and errors as for a small one."""

from __future__ import annotations

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, OracleWay
from cuda_agent.core.records import Candidate, Task, VerifyReport
from cuda_agent.judge.session import JudgeSession
from cuda_agent.judge.verify import answers, compare, reference
from cuda_agent.judge.verify.reference import Reference
from judge_specimens import eager_only, verified_in

pytestmark = pytest.mark.integration

_TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(300))

    def forward(self, x):
        {body}

def get_inputs():
    return [torch.randn(150, 300)]

def get_init_inputs():
    return []
"""
_WAYS = {
    OracleWay.SLICES: "y = torch.softmax(x * self.weight, 1); return y, y.argmax(1), y.sum(1, keepdim=True) * x",
    OracleWay.HELD: "return (x - x.mean()) * self.weight, x.abs().max()",
}
_WRONG = {
    "wrong row": "first[-1] = first[0]",
    "one wrong element": "first[77, 5] += 0.1",
    "NaN": "first[77, 5] = float('nan')",
    "a changed input": "x[140, 2] = 0",
    "a kept output": "self.kept = getattr(self, 'kept', first); first = self.kept.copy_(first)",
    "too few": "first = first[1:]",
}


def _candidate(task: Task, change: str) -> Candidate:
    lines = ["", "class ModelNew(Model):", "    def forward(self, x):", "        first, *rest = super().forward(x)"]
    text = "\n".join([*lines, f"        {change}", "        return (first, *rest)"])
    return Candidate(files={"model_new.py": task.source + text})


def _judged(task: Task, changes: dict[str, str]) -> dict[str, tuple[str, str, VerifyReport | None]]:
    found = {}
    with JudgeSession(task, JudgeOptions(device=Device.CPU, seed=5)) as session:
        eager_only(session).admit()
        with session.process(_candidate(task, "pass"), None) as process:
            for name, change in changes.items():
                found[name] = verified_in(process, session, _candidate(task, change), trials=3)
    return found


@pytest.mark.parametrize("way", list(_WAYS))
def test_a_large_task_has_the_same_verdicts(way: OracleWay, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(name="pieces", source=_TASK.format(body=_WAYS[way]))
    changes = {"honest": "pass"} | _WRONG
    monkeypatch.setattr(compare, "TILE", 1 << 13)
    small = _judged(task, changes)
    monkeypatch.setattr(Reference, "large_bytes", 1)
    for module in (answers, reference):
        monkeypatch.setattr(module, "PIECE", 1 << 13)
    large = _judged(task, changes)
    mine, theirs = large["honest"][2], small["honest"][2]
    assert mine is not None and theirs is not None
    assert mine.oracle_way is way and theirs.oracle_way is OracleWay.WHOLE and mine.oracle == "float64"
    for one, other in zip(mine.trials, theirs.trials, strict=True):
        assert (one.kind, one.passed) == (other.kind, True)
        assert [output.apart for output in one.outputs] == [output.apart for output in other.outputs]
        assert one.candidate_error == pytest.approx(other.candidate_error, rel=1e-3, abs=1e-12)
        assert one.max_abs_error == pytest.approx(other.max_abs_error, rel=1e-3, abs=1e-12)
    for name in _WRONG:
        assert large[name][0] == small[name][0] != "verified", (name, large[name][:2], small[name][:2])
        # The last digits of what is allowed may differ, since slices are rounded otherwise.
        assert large[name][1].partition(", and")[0] == small[name][1].partition(", and")[0]


def test_a_large_task_whose_answer_is_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is asked for several times, as one in many pieces is."""
    monkeypatch.setattr(Reference, "large_bytes", 1)
    task = Task(
        name="pieces", source=_TASK.format(body="y = torch.softmax(x * self.weight, 1); return y[:50], y[50:100]")
    )
    found = _judged(task, {"honest": "pass", "wrong row": "first[-1] = first[0]"})
    assert found["honest"][0] == "verified", found["honest"]
    assert found["wrong row"][0] != "verified"
