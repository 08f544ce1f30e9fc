"""The dispatcher's records of a real candidate worker, the earlier layers left out: what C++ reaches is seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate
from cuda_agent.judge.session import JudgeSession
from cuda_agent.judge.verify.trials import Verification
from cuda_agent.workers.process import WorkerFault
from judge_specimens import TASK, eager_only

pytestmark = pytest.mark.integration

BINDING = """
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include <ATen/ops/relu.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include "../binding_registry.h"

static at::Tensor mine(at::Tensor x, at::Tensor scale, at::Tensor y) {
    at::Tensor out = at::empty_like(x);
    const int64_t width = x.size(1);
    for (int64_t i = 0; i < x.numel(); ++i) {
        const float v = x.data_ptr<float>()[i] * scale.data_ptr<float>()[i % width] + y.data_ptr<float>()[i];
        out.data_ptr<float>()[i] = v > 0 ? v : 0;
    }
    return out;
}

static at::Tensor torchs(at::Tensor x, at::Tensor scale, at::Tensor y) { return at::relu(mine(x, scale, y)); }

static at::Tensor released(at::Tensor x, at::Tensor scale, at::Tensor y) {
    pybind11::gil_scoped_release none;
    return mine(x, scale, y);
}

static at::Tensor unseen(at::Tensor x, at::Tensor scale, at::Tensor y) {
    auto mode = c10::impl::TorchDispatchModeTLS::pop_stack();
    at::Tensor out = torchs(x, scale, y);
    c10::impl::TorchDispatchModeTLS::push_non_infra_mode_onto_stack(mode);
    return out;
}

static at::Tensor silenced(at::Tensor x, at::Tensor scale, at::Tensor y) {
    static auto mode = c10::impl::TorchDispatchModeTLS::pop_stack();
    return torchs(x, scale, y);
}

static void bind(pybind11::module& m) {
    m.def("mine", &mine); m.def("torchs", &torchs); m.def("released", &released);
    m.def("unseen", &unseen); m.def("silenced", &silenced);
}
REGISTER_BINDING(specimens, bind);
"""
MODEL = """
import torch
import torch.nn as nn
import cuda_extension


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x, y):
        return cuda_extension.FUNCTION(x, self.scale, y)
"""


@pytest.fixture(scope="module")
def session() -> Iterator[JudgeSession]:
    with JudgeSession(TASK, JudgeOptions(device=Device.CPU)) as opened:
        yield eager_only(opened)


def found(session: JudgeSession, function: str) -> tuple[dict[str, int], set[str]]:
    """(operators in forward, rules broken at the dispatcher)."""
    files = {"model_new.py": MODEL.replace("FUNCTION", function), "kernels/a_binding.cpp": BINDING}
    built = session.built(Candidate(files=files))
    assert built.library is not None, built.report.log
    with session.process(Candidate(files=files), built.library) as process:
        report = Verification(session, process, session.floor(), trials=2).run()
        assert report.passed, report
        return process.operators.counts, {violation.rule for violation in process.operators.violations()}


@pytest.mark.parametrize("function", ["mine", "released"])
def test_an_honest_binding_only_allocates(session: JudgeSession, function: str) -> None:
    operators, rules = found(session, function)
    assert set(operators) == {"aten.empty_like.default"}
    assert rules == set()


def test_compute_from_cpp_is_seen(session: JudgeSession) -> None:
    operators, rules = found(session, "torchs")
    assert "aten.relu.default" in operators
    assert rules == {"torch_compute"}


def test_an_output_that_was_made_while_the_recorder_was_off_is_noticed(session: JudgeSession) -> None:
    assert found(session, "unseen")[1] == {"missing_records"}


def test_a_recorder_that_was_silenced_is_noticed(session: JudgeSession) -> None:
    try:
        rules = found(session, "silenced")[1]
    except WorkerFault:
        return
    assert "missing_records" in rules
