"""Candidates for networks of the kind that users have, on which an answer without its inputs is hard to notice."""

from __future__ import annotations

from pathlib import Path

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Signal
from cuda_agent.core.records import Candidate, Task
from cuda_agent.judge.session import JudgeSession
from judge_specimens import eager_only, verified_in

FOLDER = Path(__file__).parent / "data" / "networks"
#: network -> the weights on which the judge sees the inputs in the answer, in float32.
NETWORKS = {
    "dense": Signal.OWN,
    "residual": Signal.OWN,
    "vision": Signal.OWN,
    "excite": Signal.SCALED,
    "inception": Signal.SCALED,
    "mobile": Signal.SCALED,
    "separable": Signal.SCALED,
    "squeeze": Signal.SCALED,
    "vgg": Signal.SCALED,
    "elman": Signal.OWN,
    "logsumexp": Signal.OWN,
    "masked": Signal.OWN,
    "seeded": Signal.OWN,
    "mixture": Signal.OWN,
    "sigmoids": Signal.OWN,
}
_HONEST = "return super().forward(*inputs)"
_WRONG = {
    "ignores its inputs": "return super().forward(*[torch.full_like(x, 0.5) for x in inputs])",
    "returns the mean answer": "y = super().forward(*inputs); return y.mean(0, keepdim=True).expand_as(y).clone()",
    "has a wrong row": "y = super().forward(*inputs); y[-1] = y[0]; return y",
    "remembers its first answer": "self.kept = getattr(self, 'kept', None); "
    "self.kept = super().forward(*inputs) if self.kept is None else self.kept; return self.kept.clone()",
}
_MORE_WRONG = {
    "seeded": {
        "draws nothing": "state = x.new_zeros(x.shape[1:]); return self.steps(x, state)",
        "draws twice": "torch.randn(3, device=x.device); return super().forward(x)",
        "draws other numbers": "return self.steps(x, torch.rand(x.shape[1:], device=x.device))",
        "draws once": "self.kept = getattr(self, 'kept', None); "
        "self.kept = torch.randn(x.shape[1:], device=x.device) if self.kept is None else self.kept; "
        "return self.steps(x, self.kept)",
    },
}


def network(name: str) -> Task:
    return Task(name=name, source=(FOLDER / f"{name}.py").read_text())


def _candidate(task: Task, body: str) -> Candidate:
    head = "class ModelNew(Model):\n    def forward(self, *inputs):\n        x = inputs[0]"
    text = f"{task.source}\n\n{head}\n        {body}\n"
    return Candidate(files={"model_new.py": text})


def check_network(name: str, device: Device, signal: Signal | None = None) -> None:
    """Checks that a network is judged, that an honest candidate passes, and that wrong ones don't."""
    task = network(name)
    with JudgeSession(task, JudgeOptions(device=device, seed=5)) as session:
        eager_only(session).admit()
        assert session.signal is (signal or session.signal) is not Signal.NONE
        honest = _candidate(task, _HONEST)
        with session.process(honest, None) as process:
            verdict, reason, report = verified_in(process, session, honest, trials=3)
            assert verdict == "verified", reason
            assert report is not None
            assert report.oracle == "float64"
            for said, body in {**_WRONG, **_MORE_WRONG.get(name, {})}.items():
                verdict, reason, _ = verified_in(process, session, _candidate(task, body), trials=3)
                assert verdict == "incorrect", f"a candidate that {said} is {verdict}: {reason}"
