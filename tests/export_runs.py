"""A recorded run for the tests of exports: LlamaRMSNorm on the CPU, with the playbook's kernels.

PYTHONPATH=tests .venv/bin/python tests/export_runs.py      # records it anew
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from cuda_agent.core.enums import Device
from cuda_agent.core.records import Candidate, Trajectory
from cuda_agent.core.stack import Gpu
from cuda_agent.release.export.source import Finished, read_finished
from cuda_agent.release.export.verified import Verified, describe_task, verified

RECORDED = Path(__file__).parent / "data" / "export_run"
TASK = '''"""The RMS norm of a Llama layer, as transformers has it."""

import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

TOKENS, HIDDEN = 512, 256


class Model(nn.Module):
    def __init__(self, hidden: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = LlamaRMSNorm(hidden, eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.norm(hidden_states)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(2, TOKENS // 2, HIDDEN)]


def get_init_inputs() -> list[float]:
    return [HIDDEN, 1e-6]
'''
#: the same kernels with a weight that is derived: the norm of ones, which is the weight but for epsilon.
FROZEN = """import torch
from torch import nn

import cuda_extension


class ModelNew(nn.Module):
    def __init__(self, hidden, eps=1e-06):
        super().__init__()
        self.add_module('norm', nn.Module())
        self.norm.register_parameter('weight', nn.Parameter(torch.empty((256,), dtype=torch.float32)))
        self.register_buffer('ones', torch.ones(2, 256, 256), persistent=False)
        self._derived = None

    def load_state_dict(self, *args, **kwargs):
        result = super().load_state_dict(*args, **kwargs)
        self._derived = cuda_extension.fused_forward(self.ones, self.norm.weight, 0)[0, 0].contiguous()
        return result

    def forward(self, hidden_states):
        return cuda_extension.fused_forward(hidden_states, self._derived, 0)
"""


def recorded() -> tuple[Finished, Verified]:
    """The run, and what `describe_task` says of it."""
    return read_finished(RECORDED), Verified.model_validate_json((RECORDED / "verified.json").read_text())


def frozen() -> tuple[Finished, Verified]:
    """As if its best candidate had been one that derives its weight; the kernels, and so the library, are the same."""
    run, described = recorded()
    candidate = Candidate(files={**run.candidate.files, "model_new.py": FROZEN})
    assert run.evaluation.verify is not None
    verify = run.evaluation.verify.model_copy(update={"frozen": True})
    evaluation = run.evaluation.model_copy(update={"candidate_digest": candidate.digest, "verify": verify})
    changed = Finished(run.task, run.options, candidate, evaluation)
    return changed, described.model_copy(update={"frozen": True, "candidate_digest": candidate.digest})


def on_gpu() -> tuple[Finished, Verified]:
    """As if it had been judged on an H200: texts can be looked at, nothing runs."""
    run, described = recorded()
    gpu = Gpu(name="NVIDIA H200", uuid="GPU-0", compute_capability="9.0")
    stack = run.evaluation.stack.model_copy(update={"gpus": (gpu,), "driver": "580.1", "cuda_compiler": "13.0"})
    evaluation = run.evaluation.model_copy(update={"device": Device.CUDA, "stack": stack})
    options = run.options.model_copy(update={"device": Device.CUDA})
    changed = {"device": Device.CUDA, "compute_capability": "9.0", "alignment_bytes": 128}
    return Finished(run.task, options, run.candidate, evaluation), described.model_copy(update=changed)


def _record() -> None:
    from cuda_agent import optimize

    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "llama_rms_norm.py"
        task.write_text(TASK)
        out = Path(folder) / "run"
        optimize(task, out=out, device="cpu", timing_budget_s=2.0)
        run = read_finished(out)
        described = verified(run, describe_task(run))
        shutil.copy(out / "task.json", RECORDED)
        whole = Trajectory.read(out).model_copy(update={"turns": (), "directory": None})
        whole.write(RECORDED)
        (RECORDED / "verified.json").write_text(described.model_dump_json(indent=1) + "\n")
        manifest = json.loads((out / "manifest.json").read_text())
        manifest["command"] = ["cuda-agent", "optimize", task.name, "--device", "cpu"]
        (RECORDED / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        (RECORDED / "config.json").write_text(json.dumps(manifest["configuration"], indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(_record())
