"""A task, honest answers to it, and what a test needs to judge them without a compiler: `ModelNew` in Python.

The guard refuses torch compute in `model_new.py`; here the verification behind it is what is tested, so it is asked
directly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cuda_agent.agent.context import Progress, Session
from cuda_agent.agent.judging import open_judge
from cuda_agent.core.records import Candidate, Task, VerifyReport
from cuda_agent.judge.session import JudgeSession
from cuda_agent.judge.verify.candidate import CandidateProcess
from cuda_agent.judge.verify.trials import Verification, failing
from cuda_agent.workers.process import WorkerFault
from cuda_agent.workspace.layout import Workspace

TASK = Task(
    name="scaled_relu",
    source="""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x, y):
        return torch.relu(x * self.scale + y)


def get_inputs():
    return [torch.randn(64, 256), torch.randn(64, 256)]


def get_init_inputs():
    return [256]
""",
)

_HEAD = """
import ctypes, os, sys
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.kept = {}

    def right(self, x, y):
        return torch.relu(x * self.scale + y)

    def forward(self, x, y):
"""


def specimen(body: str) -> Candidate:
    """A candidate whose `forward(self, x, y)` is `body`; `self.right(x, y)` gives the right answer."""
    lines = "".join(f"        {line}\n" for line in body.strip().splitlines())
    return Candidate(files={"model_new.py": _HEAD + lines})


HONEST = specimen("return self.right(x, y)")


def eager_only(session: JudgeSession) -> JudgeSession:
    """An open session whose task isn't compiled, which takes longest of all: for what needs no ratio to it."""
    session.baselines.eager_only = True
    return session


def verified(session: JudgeSession, candidate: Candidate, trials: int = 2) -> tuple[str, str, VerifyReport | None]:
    """(verdict or "verified", reason, report) of a candidate without a library."""
    try:
        with session.process(candidate, None) as process:
            report = _verification(session, process, trials).run()
    except WorkerFault as error:
        return error.fault.verdict.value, error.fault.reason + "\n" + error.fault.log_tail, None
    return _said(report)


def verified_in(
    process: CandidateProcess, session: JudgeSession, candidate: Candidate, trials: int = 2
) -> tuple[str, str, VerifyReport | None]:
    """As `verified`, in a worker that has served other candidates, whose log isn't looked at: for those that leave it
    as it was, since a new one takes longest of all."""
    try:
        process.load(candidate, None)
        report = _verification(session, process, trials).run()
    except WorkerFault as error:
        return error.fault.verdict.value, error.fault.reason, None
    return _said(report)


def _verification(session: JudgeSession, process: CandidateProcess, trials: int) -> Verification:
    return Verification(session, process, session.floor(), trials)


def _said(report: VerifyReport) -> tuple[str, str, VerifyReport]:
    if report.passed:
        return "verified", "", report
    verdict, reason = failing(report)
    return verdict.value, reason, report


@contextlib.contextmanager
def uncompiled_judge(
    task: Task, workspace: Workspace, progress: Progress, hidden: tuple[Path, ...], *, admitted: bool
) -> Iterator[tuple[Session, Path]]:
    """Opens the judge as a run does, but without timing torch.compile."""
    with open_judge(task, workspace, progress, hidden, admitted=True) as (session, socket):
        assert isinstance(session, JudgeSession)
        eager_only(session.__enter__()).admit()
        yield session, socket
