"""Exports on a GPU: a run of the playbook becomes a package and an operator, which take the place of Llama's norms."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent import optimize
from cuda_agent.core.enums import Verdict
from cuda_agent.release.export.export import ExportKind, export

pytestmark = [pytest.mark.gpu, pytest.mark.integration]

TASK = """
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm


class Model(nn.Module):
    def __init__(self, hidden, eps=1e-6):
        super().__init__()
        self.norm = LlamaRMSNorm(hidden, eps).to(torch.bfloat16)

    def forward(self, hidden_states):
        return self.norm(hidden_states)


def get_inputs():
    return [torch.randn(4, 2048, 2048, dtype=torch.bfloat16)]


def get_init_inputs():
    return [2048, 1e-6]
"""
INSIDE = """
import copy, importlib, sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM

package = importlib.import_module(sys.argv[1])
kernels = importlib.import_module(sys.argv[1] + ".kernels")
sizes = dict(hidden_size=2048, intermediate_size=256, num_attention_heads=16, num_key_value_heads=4)
model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1, vocab_size=128, rms_norm_eps=1e-6))
model = model.to("cuda", torch.bfloat16).eval()
ids = torch.randint(0, 128, (4, 2048), device="cuda")
calls, run = [], kernels.run


def close(answer):
    # Compiled or not, a bfloat16 model rounds elsewhere than eager: no farther from the exact answer than that.
    mine, eager = (answer.float() - exact).norm(), (expected.float() - exact).norm()
    assert mine <= 1.2 * eager, (mine, eager)


kernels.run = lambda *a: calls.append(1) or run(*a)
with torch.no_grad():
    expected, exact = model(ids).logits, copy.deepcopy(model).float()(ids).logits
    assert len(package.patch(model).replaced) == 3
    calls.clear()
    close(model(ids).logits)
    assert len(calls) == 3, calls
model(ids).logits.sum().backward()
assert len(calls) == 3 and model.model.norm.weight.grad is not None
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.no_grad(), torch.cuda.stream(side):
    answer = model(ids).logits
side.synchronize()
close(answer)
if hasattr(package, "forward"):
    for mode in (None, "reduce-overhead"):
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, mode=mode)
        with torch.no_grad():
            for _ in range(3):
                answer = compiled(ids).logits.clone()
        close(answer)
    norm, x = model.model.norm, torch.randn(4, 2048, 2048, device="cuda", dtype=torch.bfloat16)
    torch.library.opcheck(package.forward, ([x], [norm.weight.detach()]))
    with torch.no_grad():
        torch.testing.assert_close(torch.export.export(norm, (x,)).module()(x), norm(x))
"""


@pytest.mark.timeout(900)
def test_llamas_norms_by_exported_kernels(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    task = tmp_path / "llama_rms_norm.py"
    task.write_text(TASK)
    run = optimize(task, out=tmp_path / "run", device="cuda", timing_budget_s=2.0)
    assert run.evaluation is not None and run.evaluation.verdict is Verdict.PASSED
    (tmp_path / "inside.py").write_text(INSIDE)
    for kind, name in ((ExportKind.PACKAGE, "norm_package"), (ExportKind.TORCH_LIBRARY, "norm_operator")):
        folder = export(tmp_path / "run", kind, name=name, out=tmp_path / name).folder
        _run(tmp_path, folder / "src", tmp_path / "inside.py", name)
        _run(
            tmp_path, folder / "src", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, folder / "tests"
        )


@pytest.mark.timeout(900)
def test_a_derived_weight_is_derived_again(tmp_path: Path) -> None:
    task = Path(__file__).parents[2] / "examples" / "conv_bn_silu.py"
    run = optimize(task, out=tmp_path / "run", device="cuda", timing_budget_s=2.0)
    assert run.evaluation is not None and run.evaluation.verdict is Verdict.PASSED
    assert run.evaluation.verify is not None and run.evaluation.verify.frozen
    folder = export(tmp_path / "run", ExportKind.TORCH_LIBRARY, name="folded", out=tmp_path / "folded").folder
    (tmp_path / "inside.py").write_text(
        "import torch, folded\nfrom folded import patching, reference, verified\n"
        "model = reference.Model(*verified.INIT_ARGUMENTS, **verified.INIT_KEYWORDS).cuda().eval()\n"
        "inputs = patching.draw_inputs('cuda')\n"
        "assert folded.patch(model).replaced == ['']\n"
        "with torch.no_grad():\n"
        "    for parameter in model.parameters():\n"
        "        parameter.mul_(1.25)\n"
        "    expected = reference.Model.forward(model, *inputs)\n"
        "    torch.testing.assert_close(model(*inputs), expected, atol=1e-2, rtol=1e-2)\n"
    )
    _run(tmp_path, folder / "src", tmp_path / "inside.py")


@pytest.mark.timeout(900)
def test_a_hub_variant_is_built_and_loaded(tmp_path: Path) -> None:
    """Without the package `kernels`, which may not be there: as it imports a variant."""
    task = Path(__file__).parents[2] / "examples" / "scale_shift_relu.py"
    optimize(task, out=tmp_path / "run", device="cuda", timing_budget_s=2.0)
    folder = export(tmp_path / "run", ExportKind.HF_KERNELS, name="scaled", out=tmp_path / "scaled").folder
    _run(tmp_path, folder, folder / "build_local.py")
    variant = next((folder / "build").iterdir())
    (tmp_path / "inside.py").write_text(
        "import importlib.util, sys, torch\n"
        f"spec = importlib.util.spec_from_file_location('scaled_kernel', {str(variant / '__init__.py')!r})\n"
        "package = sys.modules['scaled_kernel'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(package)\n"
        "from scaled_kernel import patching, reference, verified\n"
        "model = reference.Model(*verified.INIT_ARGUMENTS, **verified.INIT_KEYWORDS).cuda().eval()\n"
        "inputs = patching.draw_inputs('cuda')\n"
        "with torch.no_grad():\n"
        "    expected = model(*inputs)\n"
        "    assert package.patch(model).replaced == ['']\n"
        "    torch.testing.assert_close(model(*inputs), expected, atol=1e-2, rtol=1e-2)\n"
        "    answer = torch.compile(model, fullgraph=True)(*inputs)\n"
        "    torch.testing.assert_close(answer, expected, atol=1e-2, rtol=1e-2)\n"
    )
    _run(tmp_path, folder, tmp_path / "inside.py")


def _run(tmp_path: Path, importable: Path, *arguments: object) -> None:
    variables = os.environ | {"PYTHONPATH": str(importable), "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]
