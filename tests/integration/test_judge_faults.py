"""Every way to fail has its own verdict within a bounded time, and the next evaluation is right. Real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.records import Candidate, Evaluation
from cuda_agent.judge.case import Case
from cuda_agent.judge.session import JudgeSession
from cuda_agent.judge.verify.candidate import CandidateProcess
from cuda_agent.workspace.descendants import descendants
from fault_specimens import HONEST as HONEST_WORKSPACE
from fault_specimens import Fault, faults, faulty, small_axpby
from judge_specimens import HONEST, TASK, eager_only, specimen, verified, verified_in

pytestmark = pytest.mark.integration

CALL_TIMEOUT_S = 8.0
#: of those that never answer: nobody's honest work is measured by it.
HANG_TIMEOUT_S = 3.0
#: they take every core for as long as they are let.
GREEDY = ("fork_bomb", "forks_and_hangs")


def named(names: Iterable[str]) -> list[object]:
    """Parameters, of which those that leave nothing to a neighbour are tried alone."""
    return [pytest.param(name, marks=pytest.mark.alone if name in GREEDY else ()) for name in names]


@contextlib.contextmanager
def opened_session(sandbox: str, timeout_s: float = CALL_TIMEOUT_S) -> Iterator[JudgeSession]:
    options = {"device": Device.CPU, "call_timeout_s": timeout_s, "host_memory_mib": 1536, "sandbox": sandbox}
    with JudgeSession(TASK, JudgeOptions.parse({**options, "seed": 11})) as opened:
        yield eager_only(opened)


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    with opened_session("auto") as opened:
        opened.reference  # noqa: B018 - loads the task outside the time limits
        yield opened


@pytest.fixture(scope="module")
def shared(session: JudgeSession) -> Iterator[Callable[[], CandidateProcess]]:
    """A worker for candidates that leave it as it was; another one when the session has another reference."""
    with contextlib.ExitStack() as stack:
        opened: list[CandidateProcess] = []

        def process() -> CandidateProcess:
            if not opened or not opened[-1].usable:
                opened.append(stack.enter_context(session.process(HONEST, None)))
            return opened[-1]

        yield process


def hurry(monkeypatch: pytest.MonkeyPatch, session: JudgeSession) -> None:
    """The next candidate, which never answers, is given less time."""
    monkeypatch.setattr(session, "options", session.options.model_copy(update={"call_timeout_s": HANG_TIMEOUT_S}))


SPECIMENS = {
    "wrong_values": ("return self.right(x, y) + 0.1", "incorrect", "atol"),
    "slightly_wrong": ("return self.right(x, y).half().float()", "incorrect", "budget"),
    "nan": ("return self.right(x, y) * float('nan')", "incorrect", "NaN"),
    "zeros": ("return torch.zeros_like(x)", "incorrect", ""),
    "ignores_the_weights": ("return torch.relu(x + y)", "incorrect", ""),
    "wrong_shape": ("return self.right(x, y)[:, :1]", "wrong_structure", "[64, 1]"),
    "wrong_type": ("return self.right(x, y).double()", "wrong_structure", "float64"),
    "wrong_nesting": ("return [self.right(x, y)]", "incorrect", "nested"),
    "two_outputs": ("return self.right(x, y), x * 2", "wrong_structure", "2 output tensors"),
    "not_a_tensor": ("return 3", "wrong_structure", ""),
    "expanded": ("return torch.zeros(1, device=x.device).expand(64, 256)", "wrong_structure", "strides"),
    "subclass": ("return nn.Parameter(self.right(x, y))", "wrong_structure", "plain"),
    "the_input_itself": ("return x.copy_(self.right(x, y))", "wrong_structure", "an input"),
    "same_storage_each_time": (
        "out = self.kept.setdefault('out', torch.empty_like(x))\nreturn out.copy_(self.right(x, y))",
        "wrong_structure",
        "earlier output",
    ),
    "changed_input": ("out = self.right(x, y)\nx.zero_()\nreturn out", "incorrect", "input 0"),
    "changed_weight": ("out = self.right(x, y)\nself.scale.zero_()\nreturn out", "incorrect", "scale"),
    "unwritten": ("out = torch.empty_like(x)\nout[:32] = self.right(x, y)[:32]\nreturn out", "incorrect", "NaN"),
    "remembered_by_pointer": (
        "key = x.data_ptr()\nif key not in self.kept:\n    self.kept[key] = self.right(x, y)\n"
        "return self.kept[key].clone()",
        "incorrect",
        "",
    ),
    "remembered_by_version": (
        "key = (x.data_ptr(), x._version)\nif key not in self.kept:\n    self.kept[key] = self.right(x, y)\n"
        "return self.kept[key].clone()",
        "incorrect",
        "",
    ),
    "remembered_by_a_sample": (
        "key = str((x.flatten()[:8].tolist(), y.flatten()[:8].tolist()))\n"
        "if key not in self.kept:\n    self.kept[key] = self.right(x, y)\nreturn self.kept[key].clone()",
        "incorrect",
        "trial changed elements",
    ),
    "largest_number_for_infinity": ("return self.right(x, y).clamp(max=3.4e38)", "incorrect", "trial special"),
    "zero_for_nan": (
        "return self.right(x, y).nan_to_num(nan=0.0, posinf=float('inf'), neginf=float('-inf'))",
        "verified",
        "",
    ),
    "right_at_unit_scale_only": (
        "out = self.right(x, y)\nreturn torch.where(x.abs() > 6, torch.zeros_like(out), out)",
        "incorrect",
        "",
    ),
    "raises": ("raise ValueError('it is what it is')", "raised", "it is what it is"),
    "system_exit": ("sys.exit(0)", "raised", "SystemExit"),
    "exits_quietly": ("os._exit(0)", "crashed", "code 0"),
    "segmentation_fault": ("ctypes.string_at(0)", "crashed", "SIGSEGV"),
    "aborts": ("os.abort()", "crashed", "SIGABRT"),
    "loops": ("while True: pass", "timed_out", f"{HANG_TIMEOUT_S:.0f} s"),
    "asks_for_too_much": ("return torch.empty(1 << 46)", "out_of_memory", ""),
    "grows": ("while True: self.kept[len(self.kept)] = torch.ones(1 << 24)", "out_of_memory", ""),
    "prints_passed": ("print('PASSED', flush=True)\nreturn torch.zeros_like(x)", "incorrect", ""),
    "kills_its_group": ("os.kill(0, 9)", None, ""),
    "forged_answer": (
        "import stat, struct\n"
        "for fd in range(3, 64):\n"
        "    try:\n"
        "        if stat.S_ISSOCK(os.fstat(fd).st_mode):\n"
        '            os.write(fd, struct.pack(\'<I\', 24) + b\'{"id": 1, "ok": "PASSED"}\')\n'
        "    except OSError:\n"
        "        pass\n"
        "return torch.zeros_like(x)",
        "violation",
        "protocol",
    ),
    "forks_and_hangs": ("os.fork() or os.setsid()\nwhile True: pass", "timed_out", ""),
    "fork_bomb": ("while True: os.fork()", None, ""),
    "fills_the_disk": (
        "with open(os.path.expanduser('~/much'), 'wb') as much:\n    while True: much.write(bytes(1 << 20))",
        "crashed",
        "disk",
    ),
    "fills_the_disk_with_names": (
        "import itertools\nfor i in itertools.count(): open(os.path.expanduser(f'~/{i}'), 'w').close()",
        "crashed",
        "disk",
    ),
}


#: all files that it can see, but for the interpreter's, the packages' and our own code.
LOOKS_AROUND = """
found = []
known = tuple({sys.prefix, sys.base_prefix, *(path for path in sys.path if path)})
for top in ('/tmp', os.path.expanduser('~'), os.getcwd()):
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if not os.path.join(folder, name).startswith(known)]
        found += [os.path.join(folder, name) for name in names]
with open('/proc/self/environ') as stream:
    found.append(stream.read())
raise RuntimeError('SEEN ' + ' '.join(found))
"""


#: what could leave something behind: the next evaluation must be right.
VIOLENT = ("segmentation_fault", "loops", "grows", "forged_answer", "forks_and_hangs", "fork_bomb")
#: those that end their worker, or spoil what is around it: each needs one of its own.
RUINOUS = (*VIOLENT, "exits_quietly", "aborts", "kills_its_group", "fills_the_disk", "fills_the_disk_with_names")
HANGS = ("loops", "forks_and_hangs")


@pytest.mark.parametrize("name", [name for name in SPECIMENS if name not in RUINOUS])
def test_each_wrong_answer_has_its_verdict(
    session: JudgeSession, shared: Callable[[], CandidateProcess], name: str
) -> None:
    body, expected, words = SPECIMENS[name]
    verdict, reason, _ = verified_in(shared(), session, specimen(body))
    assert verdict == expected and words in reason
    assert shared().usable


def test_an_honest_answer_is_verified_after_wrong_ones(
    session: JudgeSession, shared: Callable[[], CandidateProcess]
) -> None:
    verified_in(shared(), session, specimen(SPECIMENS["zeros"][0]))
    verdict, reason, _ = verified_in(shared(), session, HONEST)
    assert verdict == "verified", reason


@pytest.mark.parametrize("name", named(RUINOUS))
def test_each_failure_has_its_verdict(session: JudgeSession, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, expected, words = SPECIMENS[name]
    begin = time.monotonic()
    with monkeypatch.context() as patch:
        if name in HANGS:
            hurry(patch, session)
        verdict, reason, _ = verified(session, specimen(body))
    assert time.monotonic() - begin < CALL_TIMEOUT_S + 40
    assert verdict == expected if expected else verdict in ("crashed", "out_of_memory", "raised", "timed_out")
    assert words in reason
    if name not in VIOLENT:
        return
    verdict, reason, report = verified(session, HONEST, trials=3)
    assert verdict == "verified", reason
    assert report is not None
    assert [trial.kind for trial in report.trials][:4] == ["fresh", "in_place", "changed_elements", "other_weights"]
    assert report.oracle == "float64"


@pytest.mark.alone
def test_processes_end_without_namespaces_too() -> None:
    with opened_session("reduced", HANG_TIMEOUT_S) as session:
        for name in ("segmentation_fault", "grows", "forks_and_hangs", "forged_answer", "fork_bomb"):
            body, expected, words = SPECIMENS[name]
            verdict, reason, _ = verified(session, specimen(body))
            assert verdict == expected if expected else verdict != "verified", (name, reason)
            assert words in reason
        verdict, reason, _ = verified(session, HONEST)
        assert verdict == "verified", reason
        assert "reference" not in verified(session, specimen(LOOKS_AROUND))[1]


def test_loading_failures(session: JudgeSession, shared: Callable[[], CandidateProcess]) -> None:
    broken = {
        "import no_such_module": "no_such_module",
        "class Other: pass": "ModelNew",
        "def (": "SyntaxError",
        "import torch.nn as nn\nclass ModelNew(nn.Module):\n    pass": "ModelNew(...)",
        "import torch.nn as nn\nclass ModelNew(nn.Module):\n    def __init__(self, width):\n        super().__init__()":
            "state dict",
    }  # fmt: skip
    for source, words in broken.items():
        verdict, reason, _ = verified_in(shared(), session, Candidate(files={"model_new.py": source}))
        assert verdict == "load_failed", (source, reason)
        assert words in reason


def test_weights_derived_while_loading_are_marked(session: JudgeSession) -> None:
    source = """
import torch, torch.nn as nn
class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
    def load_state_dict(self, state, *args, **kwargs):
        result = super().load_state_dict(state, *args, **kwargs)
        self.twice = self.scale.detach() * 2
        return result
    def forward(self, x, y):
        return torch.relu(x * (self.twice / 2) + y)
"""
    verdict, reason, report = verified(session, Candidate(files={"model_new.py": source}))
    assert verdict == "verified", reason
    assert report is not None and report.frozen and report.derive_ms is not None


def test_a_candidate_sees_neither_the_reference_nor_other_workers(session: JudgeSession) -> None:
    verdict, reason, _ = verified(session, specimen(LOOKS_AROUND))
    assert verdict == "raised"
    assert "SEEN" in reason
    assert "reference" not in reason
    assert "model.py" not in reason


def test_the_reference_is_loaded_again_after_it_died(session: JudgeSession) -> None:
    session.reference  # noqa: B018
    session._reference_worker.kill()
    verdict, reason, _ = verified(session, HONEST)
    assert verdict == "verified", reason


# ---------------------------------------------------------------- whole workspaces, from the guard to the times


@pytest.fixture(scope="module")
def axpby() -> Iterator[JudgeSession]:
    options = JudgeOptions(
        device=Device.CPU, timing_budget_s=0.3, trials=2, call_timeout_s=CALL_TIMEOUT_S, host_memory_mib=2048, seed=5
    )
    with JudgeSession(small_axpby(), options) as opened:
        eager_only(opened).admit()
        opened.baselines.wait()
        yield opened


def judged(session: JudgeSession, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> Evaluation:
    if fault.past_guard:
        monkeypatch.setattr(Case, "_convict", lambda *_: None)
    if Verdict.TIMED_OUT in fault.verdicts:
        hurry(monkeypatch, session)
    if fault.killed:

        def kill(phase: str, text: str) -> None:
            if phase == "verify" and text.startswith("trial 2"):
                killed_library_holders()

        monkeypatch.setattr(session, "progress", kill)
    return session.evaluate(faulty(fault, Device.CPU))


def killed_library_holders() -> None:
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if "cuda_extension.so" in Path(f"/proc/{pid}/maps").read_text():
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("name", named(faults(Device.CPU)))
def test_each_fault_of_a_workspace(axpby: JudgeSession, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = faults(Device.CPU)[name]
    begin = time.monotonic()
    evaluation = judged(axpby, fault, monkeypatch)
    # The compiler's time besides, on a machine that others use too.
    assert time.monotonic() - begin < CALL_TIMEOUT_S + 140
    assert evaluation.verdict in fault.verdicts, evaluation.reason
    assert evaluation.phase is fault.phase
    assert fault.words in evaluation.reason + evaluation.log_tail
    assert evaluation.reason
    if name in ("compile_error", "link_error", "exception", "import_error", "wrong_signature"):
        assert fault.words in evaluation.log_tail


@pytest.mark.alone
def test_an_honest_workspace_passes_after_all_that(axpby: JudgeSession) -> None:
    evaluation = axpby.evaluate(faulty(HONEST_WORKSPACE, Device.CPU))
    assert evaluation.verdict is Verdict.PASSED, evaluation.reason


@pytest.mark.alone
@pytest.mark.parametrize("role", ["reference", "baseline"])
def test_workers_of_ours_that_were_killed_are_replaced(axpby: JudgeSession, role: str) -> None:
    worker = axpby._reference_worker if role == "reference" else axpby.baselines.workers()[0]
    for pid in descendants(worker._process.pid):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    evaluation = axpby.evaluate(faulty(HONEST_WORKSPACE, Device.CPU))
    assert evaluation.verdict is Verdict.PASSED, evaluation.reason


def test_candidates_leave_no_files_in_the_session(axpby: JudgeSession) -> None:
    for _ in range(2):
        axpby.verify(faulty(HONEST_WORKSPACE, Device.CPU))
    assert len(list(axpby.directory.glob("candidate-*"))) <= 3


@pytest.mark.alone
def test_the_benchmark_of_faults_in_a_row(tmp_path: Path) -> None:
    benchmark = Path(__file__).parents[2] / "benchmarks" / "faults.py"
    command = [sys.executable, str(benchmark), "--device", "cpu", "--count", "4", "--out", str(tmp_path / "raw.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "processes left: 0" in done.stdout
    assert len(json.loads((tmp_path / "raw.json").read_text())["samples"]) == 4
