"""Decontamination on the command line: evaluation tasks run in the sandbox and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cuda_agent.cli.main import run
from cuda_agent.core.enums import Device
from cuda_agent.core.lines import append, read_lines
from cuda_agent.tasks.decontaminate.reading import TaskSource
from cuda_agent.tasks.decontaminate.references import capturing, read_fingerprints, source_id
from cuda_agent.tasks.decontaminate.stage import SealedComparison
from cuda_agent.tasks.records import Measurement, Similarity
from cuda_agent.workspace.sandbox import resolve_level
from dataset_folders import pairs, source_of, task_of, write_folder
from task_mutators import functional, renamed

pytestmark = pytest.mark.integration

EVALUATION = Path(__file__).resolve().parents[1] / "data" / "evaluation_set"

HOSTILE = """
import contextlib, os, pathlib, torch
with contextlib.suppress(OSError):
    pathlib.Path({trace!r}).write_text("was here")
class Model(torch.nn.Module):
    def forward(self, x):
        os._exit(0)
def get_inputs():
    os._exit(0)
def get_init_inputs():
    return []
"""


def test_graphs_are_the_same_written_otherwise_and_hostile_code_stays_inside(tmp_path: Path) -> None:
    texts = {path: (EVALUATION / f"{path}.py").read_text() for path in ("gru_step", "spectral_gate")}
    trace = tmp_path / "trace"
    sources = [TaskSource("hostile.py", HOSTILE.format(trace=str(trace)))]
    for name, text in texts.items():
        sources += [
            TaskSource(name, text),
            TaskSource(f"{name} renamed", renamed(text)),
            TaskSource(name, functional(text)),
        ]
    said: list[str] = []
    graphs = capturing(Device.CPU, resolve_level("auto"), 4096)(sources, said.append)
    assert [text for text in said if "has no graph" in text] == [text for text in said if text.startswith("hostile.py")]
    assert source_id(sources[0].text) not in graphs and len(graphs) == len(sources) - 1 and not trace.exists()
    for text in texts.values():
        ids = [source_id(text), source_id(renamed(text)), source_id(functional(text))]
        assert len(set(ids)) == 3 and len({graphs[key] for key in ids}) == 1
    assert len(set(graphs.values())) == 2


def test_fingerprint_decontaminate_export_stats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation, sealed, folder = tmp_path / "evaluation", tmp_path / "sealed.jsonl", tmp_path / "set"
    evaluation.mkdir()
    (evaluation / "a.py").write_text(source_of(["relu", "gelu"], size=9))
    (evaluation / "b.py").write_text((EVALUATION / "gru_step.py").read_text())
    assert run(["tasks", "fingerprint", str(evaluation), "--out", str(sealed)]) == 0
    assert all(reference.graph for reference in read_fingerprints(sealed))
    write_folder(folder, pairs(40))
    # A task that only its graph gives away: its source is another's.
    graph = read_fingerprints(sealed)[0].graph
    disguised = task_of(["rrelu"], 40)
    measurement = Measurement(task_key=disguised.task.key, finding=None, eager_us=2e3, graph_hash=graph)
    append(folder / "candidates.jsonl", [disguised])
    append(next(folder.glob("measurements-*")), [measurement])
    assert run(["tasks", "export", str(folder)]) == 2
    assert run(["tasks", "decontaminate", str(folder)]) == 2
    left_out = tmp_path / "left_out.json"
    assert run(["tasks", "decontaminate", str(folder), "--against", str(sealed), "--sealed", str(left_out)]) == 0
    assert len(SealedComparison.read_file(left_out).left_out) == 2
    lines = read_lines(folder / "similarity.jsonl", Similarity)
    assert sum(line.finding is not None for line in lines) == 2
    assert lines[-1].same_graph is not None and lines[-1].similarity < 0.9
    assert run(["tasks", "export", str(folder), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert sum(json.loads(capsys.readouterr().out)["splits"].values()) == 39
    assert run(["tasks", "stats", str(folder)]) == 0
    assert "torch#2" in capsys.readouterr().out and (folder / "plots" / "funnel.svg").exists()
    assert run(["tasks", "import", str(tmp_path / "out" / "train.parquet"), "--out", str(tmp_path / "new")]) == 0
