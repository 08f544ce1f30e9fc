"""`Inspect` on the cpu device, by the real compiler, disassembler and run; and what it says where a tool is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.inspection import InspectReport
from cuda_agent.core.records import BuildReport, Candidate, Task
from cuda_agent.judge.session import JudgeSession
from cuda_agent.workspace.inspection import say_inspection
from integration.scripted_runs import FILES, SOURCE
from judge_specimens import eager_only

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    options = JudgeOptions(device=Device.CPU, timing_budget_s=1.0)
    with JudgeSession(Task(name="gated", source=SOURCE), options) as made:
        yield eager_only(made)


def test_a_candidate_on_the_cpu(session: JudgeSession) -> None:
    report = session.inspect(Candidate(files=FILES))
    assert isinstance(report, InspectReport)
    assert report.notes == ()
    assert report.source == "counted"
    assert report.work is not None
    # Two inputs and an output of 512 x 512 floats; multiply, add, relu, sigmoid, multiply.
    assert report.work.bytes == 3 * 512 * 512 * 4
    assert report.work.product_flops == 0
    assert report.work.other_flops == 5 * 512 * 512
    assert report.roofline is not None
    assert report.limit is not None
    assert report.latency_us is not None
    assert any(line.startswith("kernels/gated.cpp:") for line in report.loops)
    assert any("gated" in code.name and code.mix.get("vector") for code in report.code), report.code
    assert not any("binding" in code.source for code in report.code)
    text = say_inspection(report)
    assert text.startswith(f"{report.limit}-bound (counted): ")
    assert InspectReport.model_validate_json(report.model_dump_json()) == report


def test_what_does_not_compile_is_the_builds_report(session: JudgeSession) -> None:
    found = session.inspect(Candidate(files={**FILES, "kernels/gated.cpp": "int"}))
    assert isinstance(found, BuildReport)
    assert not found.succeeded


def test_a_candidate_that_fails_leaves_the_compilers_part(session: JudgeSession) -> None:
    wrong = FILES["model_new.py"].replace("return cuda_extension", "raise ValueError('no'); return cuda_extension")
    found = session.inspect(Candidate(files={**FILES, "model_new.py": wrong}))
    assert isinstance(found, InspectReport)
    assert found.limit is None
    assert found.code
    assert "ValueError: no" in " ".join(found.notes)
    assert "limit can't be named" in say_inspection(found)
