"""Numbers put and combined where indices say: a module of all ways, and its program of the playbook run beside it."""

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

ROWS, COLUMNS, MORE = 13, 24, 40


class Scatters(nn.Module):
    def forward(
        self, x: torch.Tensor, source: torch.Tensor, column: torch.Tensor, row: torch.Tensor, apart: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """x [13, 24], source [13, 40], column in [0, 24) [13, 40], row in [0, 13) [40], apart: 7 different rows."""
        return (
            x.scatter_add(1, column, source),
            x.relu().scatter_add(1, column[:9, :30], source * 2.0).sigmoid(),
            x.scatter_reduce(1, column, source, "amax"),
            x.scatter_reduce(1, column, source, "amin"),
            x.scatter_reduce(1, column[:, :3], source, "prod"),
            x.scatter(0, column[:1, :COLUMNS] % ROWS, 0.25),
            x.index_add(0, row, source[:1, :COLUMNS] * row[:, None]),
            x.index_copy(0, apart, source[:7, :COLUMNS]),
            x.index_fill(0, apart, 1.5),
            x.index_put((apart - ROWS, apart), source[0, :7]),
            x.index_put((row,), source[:1, :COLUMNS], accumulate=True),
            x.index_reduce(0, row, source.T[:, :1] + x[:1], "amax"),
        )


class SliceScatters(nn.Module):
    """Whole slices, which lie next to each other in memory."""

    def forward(
        self, x: torch.Tensor, more: torch.Tensor, at: torch.Tensor, apart: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """x [3, 9, 20], more [3, 30, 20], at in [-9, 9) [30], apart: 5 different places in [0, 9)."""
        spread = (at % 9)[None, :, None].expand(3, 30, 20)
        return (
            x.index_add(1, at % 9, more),
            torch.ops.aten.index_put(x, [None, at], more.relu(), True),
            x.index_copy(-2, apart, more[:, :5]),
            x.index_reduce(1, at % 9, more, "amax"),
            x.index_reduce(1, at % 9, more, "amin"),
            x.index_reduce(1, at.int() % 9, more, "prod"),
            x.transpose(0, 1).index_add(0, at[::2] % 9, more.transpose(0, 1)[:15]).sigmoid(),
            x[..., :17].index_add(1, at % 9, more[..., 3:]),
            x.scatter_add(1, spread, more),
            x.scatter_reduce(1, spread, more * 2.0, "amax"),
            x.reshape(3, 180).index_add(0, apart % 3, more.reshape(10, 180)[:5]),
        )


def slice_inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(3, 9, 20),
        torch.randn(3, 30, 20),
        torch.randint(-9, 9, (30,)),
        torch.randperm(9)[:5],
    ]


class RowScatters(nn.Module):
    """Along many rows, which are held in shared memory on a GPU."""

    def forward(
        self, x: torch.Tensor, source: torch.Tensor, column: torch.Tensor, apart: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """x [10, 20, 23], source [10, 20, 40], column in [-23, 23) of its shape, apart: 9 different columns of each."""
        return (
            x.scatter_add(-1, column % 23, source),
            x[..., :20].relu().scatter_reduce(2, column.int().long() % 20, source * 2.0, "amax").sigmoid(),
            x.scatter_reduce(2, column % 23, source, "amin"),
            x.scatter_reduce(2, column[..., :3] % 23, source[..., :3] + 1.0, "prod"),
            x.scatter(2, apart, source[..., :9]),
            x.scatter(2, column % 23, -0.25),
            x.scatter(2, apart, 2.0, reduce="multiply"),
        )


def row_inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(10, 20, 23),
        torch.randn(10, 20, MORE),
        torch.randint(-23, 23, (10, 20, MORE)),
        torch.rand(10, 20, 23).argsort(-1)[..., :9],
    ]


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(ROWS, COLUMNS),
        torch.randn(ROWS, MORE),
        torch.randint(0, COLUMNS, (ROWS, MORE)),
        torch.randint(0, ROWS, (MORE,)),
        torch.randperm(ROWS)[:7],
    ]


class AllScatters(nn.Module):
    """Both in one program: a process can load one."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.rows, self.slices = Scatters(), RowScatters(), SliceScatters()

    def forward(
        self,
        x: torch.Tensor,
        source: torch.Tensor,
        column: torch.Tensor,
        row: torch.Tensor,
        apart: torch.Tensor,
        y: torch.Tensor,
        more: torch.Tensor,
        places: torch.Tensor,
        different: torch.Tensor,
        z: torch.Tensor,
        slices: torch.Tensor,
        at: torch.Tensor,
        unlike: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        return (
            *self.plain(x, source, column, row, apart),
            *self.rows(y, more, places, different),
            *self.slices(z, slices, at, unlike),
        )


def check_scatters(device: Device, folder: Path) -> None:
    model = AllScatters()
    given = [tensor.to(device.value) for tensor in (*inputs(), *row_inputs(), *slice_inputs())]
    proposal = propose(graph_of(model, given), device, Precision.FP32)
    assert "scatter" in proposal.skills
    built = build_extension(Candidate(files=dict(proposal.files)), JudgeOptions(device=device))
    assert built.library is not None, built.report.log
    import_extension(built.library, "scattered")
    (folder / "model_new.py").write_text(proposal.files["model_new.py"])
    module = execute_model(folder / "model_new.py")
    ours = module.ModelNew().to(device.value)
    for setting in range(max(proposal.tunables.values(), default=1)):
        for name, count in proposal.tunables.items():
            module.CONFIG[name] = min(setting, count - 1)
        for place, (mine, theirs) in enumerate(zip(ours(*given), model(*given), strict=True)):
            torch.testing.assert_close(mine, theirs, msg=lambda text, place=place: f"output {place}: {text}")
