"""Tasks that can't be judged end with one line that names the cause and the remedy. Real workers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Signal
from cuda_agent.core.errors import TaskError
from cuda_agent.core.records import Task
from cuda_agent.judge.profile.baselines import Baselines
from cuda_agent.judge.session import JudgeSession
from cuda_agent.workers.supply import WorkerSupply
from judge_specimens import TASK, eager_only

pytestmark = pytest.mark.integration

_MODEL = "import torch, torch.nn as nn\nclass Model(nn.Module):\n    def forward(self, x):\n        {body}\n"
_INPUTS = "def get_inputs():\n    return [torch.randn(64, 64)]\n"
_INIT = "def get_init_inputs():\n    return []\n"


def task(body: str = "return x + 1", inputs: str = _INPUTS, **fields: float) -> Task:
    return Task(name="bad", source=_MODEL.format(body=body) + inputs + _INIT, **fields)


BAD = {
    "syntax_error": (Task(name="bad", source="def ("), "line 1"),
    "no_model": (Task(name="bad", source="import torch\n" + _INPUTS + _INIT), "no class `Model`"),
    "inputs_raise": (task(inputs="def get_inputs():\n    raise OSError('no data')\n"), "no data"),
    "no_tensors": (task(inputs="def get_inputs():\n    return [3]\n"), "no tensors"),
    "forward_raises": (task("return x @ x[:3]"), "Model.forward"),
    "forward_exits": (task("import os; os._exit(3)"), "code 3"),
    "needs_a_gpu": (task("return x.cuda()"), "CUDA"),
    "stochastic": (task("return x * torch.bernoulli(x.sigmoid())"), "stochastic"),
    "random_of_python": (task("import random; return x + random.random()"), "stochastic"),
    "dropout_kept_on": (task("return nn.functional.dropout(x, 0.5, training=True)"), "stochastic"),
    "changes_its_input": (task("y = nn.functional.dropout(x, 0.1, self.training); y += 1; return y"), "in place"),
    "changed_buffer": (
        Task(
            name="bad",
            source="import torch, torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.register_buffer('calls', torch.zeros(()))\n"
            "    def forward(self, x):\n        self.calls += 1\n        return x * self.calls\n" + _INPUTS + _INIT,
        ),
        "since forward changes calls",
    ),
    "changed_hidden_buffer": (
        Task(
            name="bad",
            source="import torch, torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.register_buffer('state', torch.zeros(64), persistent=False)\n"
            "    def forward(self, x):\n        self.state = 0.9 * self.state + x.mean(0)\n"
            "        return x + self.state\n" + _INPUTS + _INIT,
        ),
        "since forward changes state",
    ),
    "noise_made_large": (
        task("z = (x - x.mean(1, True)).mean(1, True); return x * nn.functional.normalize(z, dim=0)"),
        "eager and the float64 answer differ in",
    ),
    "choice_at_a_tie": (task("return torch.floor(x.softmax(1).sum(1, True)) * x"), "eager and the float64 answer"),
    "hidden_state": (
        Task(
            name="bad",
            source="import torch, torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.noise = torch.randn(64)\n"
            "    def forward(self, x):\n        return x + self.noise\n" + _INPUTS + _INIT,
        ),
        "state dict",
    ),
    "no_output": (task("return 3"), "no tensor"),
    "changing_shapes": (
        task(inputs="n = [3]\ndef get_inputs():\n    n[0] += 1\n    return [torch.randn(n[0], 4)]\n"),
        "other shapes",
    ),
}  # fmt: skip


SIGNALS = {
    "zeros_pass": (task("return x * 0"), Signal.NONE),
    "constant": (task("return x * 0 + 3"), Signal.NONE),
    "other_inputs_pass": (task("return torch.sigmoid(x.abs().sum() * 100).expand(8).clone()"), Signal.NONE),
    # Small, yet told apart by the relative bound of the oracle.
    "single_number": (task("return (x * x).sum()"), Signal.OWN),
    # What is left of it is rounding, and within the tolerance.
    "rounding": (task("return (x + 1.1) - 1.1 - x"), Signal.NONE),
    "tiny_values": (task("return x * 1e-12", atol=1e-2), Signal.OWN),
}


@pytest.fixture
def only_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody comes as far as a candidate or a baseline: their workers would only take the cores."""
    monkeypatch.setattr(WorkerSupply, "prewarm", lambda self: None)
    monkeypatch.setattr(Baselines, "begin", lambda self: None)


@pytest.mark.usefixtures("only_the_reference")
@pytest.mark.parametrize("name", BAD)
def test_refused_with_cause_and_remedy(name: str) -> None:
    bad, words = BAD[name]
    options = JudgeOptions(device=Device.CPU, seed=5)
    with JudgeSession(bad, options) as session, pytest.raises(TaskError) as caught:
        session.admit()
    assert words in caught.value.cause
    assert caught.value.remedy
    assert "\n" not in caught.value.cause


@pytest.mark.usefixtures("only_the_reference")
@pytest.mark.parametrize("name", SIGNALS)
def test_weights_are_found_on_which_null_answers_fail(name: str) -> None:
    judged, signal = SIGNALS[name]
    with JudgeSession(judged, JudgeOptions(device=Device.CPU, seed=5)) as session:
        assert session.admit().outputs
        assert session.signal is signal


def test_a_good_task_is_described() -> None:
    with JudgeSession(TASK, JudgeOptions(device=Device.CPU)) as session:
        spec = eager_only(session).admit()
        assert "aten.relu.default" in {node.op for node in session.graph().nodes}
    assert spec.outputs[0].shape == (64, 256) and len(spec.state) == 1


@pytest.mark.usefixtures("only_the_reference")
def test_what_a_task_imports_is_there_before_the_device_is_started(tmp_path: Path) -> None:
    (tmp_path / "slow_library.py").write_text("import time\ntime.sleep(3)\n")
    source = "import slow_library\n" + _MODEL.format(body="return x + 1") + _INPUTS + _INIT
    options = JudgeOptions(device=Device.CPU, seed=5)
    with JudgeSession(Task(name="slow", source=source), options, importable=[tmp_path]) as session:
        estimate, worker = session.start(), session._reference_worker
        assert (estimate.inputs, estimate.outputs, estimate.rest) == (64 * 64 * 4, 64 * 64 * 4, 0)
        assert worker.alive and not worker.awake
        begin = time.monotonic()
        session.reference  # noqa: B018 - loads it
        assert time.monotonic() - begin < 2.5


@pytest.mark.usefixtures("only_the_reference")
def test_a_task_that_ends_its_process_when_it_is_imported_is_refused() -> None:
    source = "import os; os._exit(3)\n" + _MODEL.format(body="return x + 1") + _INPUTS + _INIT
    with JudgeSession(Task(name="ends", source=source), JudgeOptions(device=Device.CPU, seed=5)) as session:
        session.start()
        with pytest.raises(TaskError) as caught:
            session.admit()
    assert "exited with code 3" in str(caught.value)
