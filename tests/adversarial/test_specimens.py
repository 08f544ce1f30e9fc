"""Every specimen fails for the right reason and every twin passes, through the judge as everybody uses it.

`make adversarial` runs all; `make test` one specimen and one twin a class on the CPU. Safe side by side (`-n`):
building happens at once, verifying and timing one at a time on each device.
"""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from specimen import CLASSES, PAGE, Specimen, failure, options, renewed, specimens, task

from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import Evaluation
from cuda_agent.judge.profile.foreign_load import foreign_load
from cuda_agent.judge.session import JudgeSession
from cuda_agent.workers.gpulock import gpu_uuid

#: how often a timing that somebody else disturbs is made again.
ATTEMPTS = 3


def _marked(specimen: Specimen) -> pytest.ParameterSet:
    marks = [pytest.mark.adversarial] if not specimen.ci or specimen.device is Device.CUDA else []
    marks += (
        [pytest.mark.gpu]
        if specimen.device is Device.CUDA
        else [pytest.mark.integration, pytest.mark.alone]
        if specimen.ci
        else []
    )
    if specimen.open:
        marks.append(pytest.mark.xfail(reason=specimen.open, strict=False))
    return pytest.param(specimen, id=specimen.id, marks=marks)


class Sessions:
    """One open judge at a time, for the task and device that the present specimens have in common."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._key: tuple[str, Device] | None = None
        self._session: JudgeSession | None = None

    def get(self, specimen: Specimen) -> JudgeSession:
        key = (specimen.task, specimen.device)
        if self._session is None or key != self._key:
            self.close()
            with alone(specimen.device):
                session = self._stack.enter_context(JudgeSession(task(specimen.task), options(specimen.device)))
                session.admit()
                session.baselines.wait()
            self._session, self._key = session, key
        return self._session

    def close(self) -> None:
        self._stack.close()
        self._session = None


@contextlib.contextmanager
def alone(device: Device) -> Iterator[None]:
    """Nobody else of this suite uses the device: another one's verification would be foreign load to a timing."""
    with (Path(tempfile.gettempdir()) / f"cuda-agent-adversarial-{device.value}.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    opened = Sessions()
    yield opened
    opened.close()


def judged(sessions: Sessions, specimen: Specimen, directory: Path) -> Evaluation | UsageError:
    try:
        candidate = specimen.lay_out(directory).snapshot()
    except UsageError as error:
        return error
    session = sessions.get(specimen)
    session.build(candidate)
    for _ in range(ATTEMPTS):
        with alone(specimen.device):
            evaluation = session.evaluate(candidate)
            if not failure(specimen, evaluation):
                break
            busy = evaluation.reason if evaluation.verdict is Verdict.TIMING_VOID else _neighbours(specimen.device)
        if not _says_a_clock(evaluation) or busy is None:
            break
    else:
        pytest.skip(f"no clock can be trusted here: {busy}")
    return evaluation


def _neighbours(device: Device) -> str | None:
    return foreign_load(device, gpu_uuid(device))


def _says_a_clock(evaluation: Evaluation) -> bool:
    """Whether it ended as it did because of times, which somebody else's load can disturb."""
    timed = evaluation.verdict in (Verdict.PASSED, Verdict.TIMING_VOID)
    return timed or any(violation.layer == "timing" for violation in evaluation.violations)


@pytest.mark.parametrize("specimen", [_marked(item) for item in specimens()])
def test_the_judge_is_right(sessions: Sessions, specimen: Specimen, tmp_path: Path) -> None:
    assert not failure(specimen, judged(sessions, specimen, tmp_path / "workspace"))


def test_every_class_has_specimens_and_twins() -> None:
    found = specimens()
    for family in CLASSES:
        for device in Device:
            mine = [item for item in found if item.family == family and item.device is device]
            assert sum(not item.honest for item in mine) >= 2, (family, device)
            assert sum(item.honest for item in mine) >= 1, (family, device)
        assert {item.honest for item in found if item.family == family and item.ci} == {True, False}, family
    assert {item.family for item in found} == set(CLASSES)
    assert len({(item.family, item.name) for item in found if not item.honest}) >= 60
    assert len([item for item in found if item.honest]) >= 25


def test_the_ledger_is_the_suite() -> None:
    page = PAGE.read_text()
    assert page == renewed(page), "renew it: python tests/adversarial/specimen.py"
