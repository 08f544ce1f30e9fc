"""Baselines of a small task, compiled for real on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cuda_agent.core.baselines import Baseline
from cuda_agent.core.enums import Device, Precision
from cuda_agent.workers.inside.baselines import BaselineSet, Flags, Planned, Products, planned, stop_compiler_processes
from cuda_agent.workers.inside.compilations import count_compilations, forget_compilations

pytestmark = pytest.mark.integration

SOURCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, 3)
        self.scale = 2.0
    def forward(self, x):
        return torch.relu(self.linear(x)) * self.scale, x.sum(1)
def get_inputs():
    return [torch.randn(5, 4)]
def get_init_inputs():
    return [4]
"""


def names(device: Device, precision: Precision, products: Products) -> dict[str, bool]:
    found = planned(device, precision, products)
    return {one.name: one.matched for one in found if not one.baseline.frozen}


def test_forms() -> None:
    none, matmul, conv = Products(False, False), Products(True, False), Products(False, True)
    assert names(Device.CPU, Precision.TF32, matmul) == {"eager": True, "compile": True}
    plain = {"eager": True, "compile": True}
    assert names(Device.CUDA, Precision.TF32, none) == {**plain, "graphs_tf32": True}
    assert names(Device.CUDA, Precision.TF32, conv) == {**plain, "graphs_tf32": True}, "cuDNN uses TF32 by default"
    policy = {"eager_tf32": True, "compile_tf32": True, "graphs_tf32": True}
    assert names(Device.CUDA, Precision.TF32, matmul) == {"eager": False, "compile": False, **policy}
    assert names(Device.CUDA, Precision.FP32, matmul) == {**plain, "graphs_fp32": True}
    assert len(names(Device.CUDA, Precision.FP32, conv)) == 5
    assert len(names(Device.CUDA, Precision.BF16, conv)) == 5


def test_eager_and_compile_agree_and_take_new_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    baselines = BaselineSet(SOURCE, "toy", Device.CPU, Precision.TF32)
    assert baselines.products == Products(True, False)
    plain = [one for one in baselines.planned() if not one.baseline.frozen]
    for one in plain:
        baselines.prepare(one)
    # A captured graph that would copy for longer than the host needs to launch; on a CPU there is none.
    graph = Planned(Baseline.parse("graphs_tf32"), Flags(), True)
    assert baselines.outlasted(graph, 1.0) == ""
    with monkeypatch.context() as pretended:
        pretended.setattr(baselines, "device", Device.CUDA)
        pretended.setattr(torch.cuda, "synchronize", lambda: None)
        assert "would copy" in baselines.outlasted(graph, 1.0) and baselines.outlasted(graph, 1e15) == ""
        assert baselines.outlasted(Planned(graph.baseline, Flags(matmul_tf32=True), True), 1.0) == ""
    baselines.drop_sample()
    assert set(baselines.compilations) == {"compile"}
    report = baselines.compilations["compile"]
    assert (report.graphs, report.breaks, report.fallbacks, report.reasons) == (1, 0, 0, ())
    assert report.compile_s > 0
    x = torch.randn(5, 4)
    weight, bias = torch.randn(3, 4), torch.randn(3)
    baselines.load_weights({"linear.weight": weight, "linear.bias": bias})
    expected = torch.relu(x @ weight.T + bias) * 2
    for one in plain:
        with torch.no_grad():
            y, total = baselines.program(one.name)(x)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(total, x.sum(1))
    (frozen,) = [one for one in baselines.planned() if one.baseline.frozen]
    baselines.prepare(frozen)
    with torch.no_grad():
        torch.testing.assert_close(baselines.program("frozen_tf32")(x)[0], expected)
    stop_compiler_processes()


def test_what_a_compiler_leaves_to_eager_is_counted() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        torch._dynamo.graph_break()
        return y + 1 if y.sum() > -1 else y

    begin = forget_compilations()
    torch.compile(program, backend="eager")(torch.ones(3))
    broken = count_compilations(begin)
    assert broken.graphs == 3 and broken.breaks == 2
    assert any("Data-dependent branching" in reason for reason in broken.reasons)
    begin = forget_compilations()
    torch.compile(torch.relu, backend="eager")(torch.ones(3))
    assert count_compilations(begin).breaks == 0, "of one program alone"


def test_eager_is_prepared_without_a_compiler() -> None:
    """A compiler's modules in the process make every call of a few microseconds slower; a candidate's has none."""
    program = (
        "import sys\n"
        "from cuda_agent.core.enums import Device, Precision\n"
        "from cuda_agent.workers.inside.baselines import BaselineSet, stop_compiler_processes\n"
        f"source = {SOURCE!r}\n"
        "forms = BaselineSet(source, 'linear', Device.CPU, Precision.TF32)\n"
        "forms.prepare(forms.planned()[0])\n"
        "forms.program('eager')\n"
        "stop_compiler_processes()\n"
        "assert forms.products.matmul\n"
        "assert 'torch._dynamo' not in sys.modules and 'torch._inductor' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
