"""Adds folders of skills for a while: what reads them once reads them anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from cuda_agent.playbook import codegen, registry
from cuda_agent.workspace import layout
from cuda_agent.workspace.skills import FOLDERS, skill_notes

TOYS = Path(__file__).parent / "data" / "skills"
INPUTS = [torch.randn(6, 8)]


class Signs(torch.nn.Module):
    """Its `sign` is the toy's, what stands around it other skills'."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sign(x.exp() - 1.0) * 2.0


@contextmanager
def added(folder: Path = TOYS) -> Iterator[None]:
    FOLDERS.append(str(folder))
    _forget()
    try:
        yield
    finally:
        FOLDERS.remove(str(folder))
        _forget()


def _forget() -> None:
    for known in (skill_notes, registry.skills, layout.fixed_files, codegen.environment):
        known.cache_clear()
