"""Recurrent networks: a module of all kinds, and its program of the playbook run beside it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.records import Candidate
from cuda_agent.judge.build.extension import build_extension
from cuda_agent.playbook.proposal import propose
from cuda_agent.workers.inside.candidate import execute_model, import_extension
from playbook_harness import graph_of

STEPS, BATCH, WIDTH, HIDDEN = 7, 11, 12, 20


class Networks(nn.Module):
    """x [7, 11, 12], h and c [2, 11, 20]."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, HIDDEN, num_layers=2)
        self.both_ways = nn.LSTM(WIDTH, 18, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(WIDTH, HIDDEN, num_layers=2, bias=False)
        self.gru_both_ways = nn.GRU(WIDTH, HIDDEN, bidirectional=True, num_layers=2)
        self.tanh = nn.RNN(WIDTH, HIDDEN)
        self.relu = nn.RNN(WIDTH, 130, nonlinearity="relu", batch_first=True)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        states, (last, cell) = self.lstm(x, (h, c))
        batch = x.transpose(0, 1)
        both, (end, _) = self.both_ways(torch.sigmoid(batch))
        gru, gru_end = self.gru(x, h)
        gru_both, gru_both_end = self.gru_both_ways(x)
        tanh, _ = self.tanh(x * 2.0, h[:1])
        relu, relu_end = self.relu(batch)
        alone, _ = self.tanh(x[:, 3])
        return (states, last, cell, both, end, gru, gru_end, gru_both, gru_both_end, tanh, relu[:, -1], relu_end, alone)


def check_networks(device: Device, folder: Path) -> None:
    torch.manual_seed(0)
    sizes = (STEPS, BATCH, WIDTH), (2, BATCH, HIDDEN), (2, BATCH, HIDDEN)
    model, given = Networks().to(device.value).eval(), [torch.randn(size, device=device.value) for size in sizes]
    proposal = propose(graph_of(model, given), device, Precision.FP32)
    assert {"recurrent", "gemm"} <= set(proposal.skills)
    built = build_extension(Candidate(files=dict(proposal.files)), JudgeOptions(device=device))
    assert built.library is not None, built.report.log
    import_extension(built.library, "networks")
    (folder / "model_new.py").write_text(proposal.files["model_new.py"])
    module = execute_model(folder / "model_new.py")
    ours = module.ModelNew().to(device.value)
    ours.load_state_dict(model.state_dict())
    for setting in range(max(proposal.tunables.values(), default=1)):
        for name, count in proposal.tunables.items():
            # A product's later settings are the library's further algorithms, of which small ones have few.
            if setting == 0 or not name.startswith("gemm"):
                module.CONFIG[name] = min(setting, count - 1)
        with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
            for place, (mine, theirs) in enumerate(zip(ours(*given), model(*given), strict=True)):
                torch.testing.assert_close(
                    mine, theirs, rtol=1e-4, atol=2e-6, msg=lambda text, place=place: f"output {place}: {text}"
                )
