"""A model taken apart and put together again, as a terminal shows it; and the records that can't be."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console, RenderableType

from builders import evaluation, ratio, stack, timing
from cuda_agent.cli.main import run
from cuda_agent.core.enums import Device, Precision, SandboxLevel
from cuda_agent.core.errors import KeepOriginal
from cuda_agent.core.extraction import ExtractedTask, Extraction, LeftOutPart, WholeModel, WholePart
from cuda_agent.core.graph import TensorMeta
from cuda_agent.core.records import Budget, Candidate, Trajectory
from cuda_agent.release.extract.apply import optimized
from cuda_agent.report.tables.extraction import extraction_view, whole_model_view

META = TensorMeta(shape=(2, 4), dtype="float32", strides=(4, 1))
CALL: dict[str, Any] = {"dict": {"args": {"list": [{"t": 0}]}, "kwargs": {"dict": {}}}}
TASK = ExtractedTask(
    name="Block", key="a" * 64, file="tasks/Block.py", kind="Block", origin="mine.Block", paths=("a.0", "a.1"), calls=2,
    time_us=60.0, share=0.6, operators=7, weights=3, call=CALL, inputs=(META,),
)  # fmt: skip
EXTRACTION = Extraction(
    model="mine.py", name="mine", source="", device=Device.CPU, total_us=100.0, outside_us=10.0, tasks=(TASK,),
    left_out=(LeftOutPart(kind="Cache", paths=("c",), time_us=30.0, share=0.3, reason="bad \x1b[31m red"),),
    sandbox=SandboxLevel.FULL, stack=stack(), started="now",
)  # fmt: skip
PART = WholePart(
    task="Block", key="a" * 64, candidate_digest="b" * 64, run="runs/Block", paths=("a.0", "a.1"), calls=2, fallbacks=1,
    share=0.6, speedup=2.0,
)  # fmt: skip


def whole(**changes: Any) -> WholeModel:
    known: dict[str, Any] = {
        "model": "mine.py", "key": "c" * 64, "device": Device.CPU, "precision": Precision.TF32, "parts": (PART,),
        "agreed": True, "max_error": 1e-6, "original_error": 5e-7, "original": timing(200.0), "patched": timing(150.0),
        "speedup": ratio("eager", 1.3), "others": {"compile": ratio("compile", 1.1)}, "covered": 0.6, "predicted": 1.43,
        "sandbox": SandboxLevel.FULL, "stack": stack(), "started": "now",
    }  # fmt: skip
    return WholeModel(**{**known, **changes})


def shown(view: RenderableType) -> str:
    text = io.StringIO()
    Console(file=text, width=160).print(view)
    return text.getvalue()


def test_where_the_time_goes() -> None:
    text = shown(extraction_view(EXTRACTION))
    assert "60.0%" in text and "a.0 and 1 more" in text and "mine.Block" in text
    assert "no task, 30.0%: Cache (c)" in text and "\x1b[31m" not in text
    assert "100.0 µs a pass, 60.0% of it in tasks, 10.0% in the model's own forward" in text


def test_the_whole_beside_the_original() -> None:
    text = shown(whole_model_view(whole()))
    for words in ("2.00×", "1.43×", "outputs agree", "torch.compile", "1.00e-06", "200.0", "150.0"):
        assert words in text
    failed = whole(agreed=False, reason="off by 3", original=None, patched=None, speedup=None, others={})
    assert "don't agree: off by 3" in shown(whole_model_view(failed))


def test_a_time_without_agreement_can_t_be_written() -> None:
    for changes in ({"agreed": False}, {"patched": None}, {"parts": ()}):
        with pytest.raises(ValidationError):
            whole(**changes)
    assert WholeModel.from_json(whole().to_json()) == whole()


def test_a_whole_that_is_not_faster_is_kept() -> None:
    assert whole().closest_attempt is None
    compiled = whole(others={"compile": ratio("compile", 0.97)})
    assert compiled.closest_attempt is not None and compiled.closest_attempt.baseline == "compile"
    assert "keep the original: the closest attempt is 0.98 times" in shown(whole_model_view(compiled))


def test_the_fastest_run_of_a_task_counts_and_comparisons_don_t(tmp_path: Path) -> None:
    _runs(tmp_path, ("slow", 1.5, None), ("fast", 3.0, None), ("triton", 9.0, "triton"))
    parts, notes = optimized(EXTRACTION, [tmp_path])
    assert [part.run.name for part in parts] == ["fast"]
    assert len(notes) == 1 and "comparison (triton)" in notes[0]


def test_a_part_that_is_not_faster_is_kept(tmp_path: Path) -> None:
    _runs(tmp_path, ("slower", 0.9, None))
    with pytest.raises(KeepOriginal, match="No part is faster"):
        optimized(EXTRACTION, [tmp_path])
    parts, _ = optimized(EXTRACTION, [tmp_path], anyway=True)
    assert [part.run.name for part in parts] == ["slower"]


def _runs(folder: Path, *runs: tuple[str, float, str | None]) -> None:
    """Writes finished runs of the task: name, speed-up, and what it is a comparison of."""
    best = Candidate(files={"model_new.py": "class ModelNew: ...\n"})
    for name, low, comparison in runs:
        judged = evaluation(candidate_digest=best.digest, task_key="a" * 64, comparison=comparison)
        assert judged.profile is not None
        ratios = {baseline: ratio(baseline, low) for baseline in ("eager", judged.profile.matched)}
        profile = judged.profile.model_copy(update={"ratios": ratios})
        (folder / name).mkdir()
        Trajectory(
            task_key="a" * 64, task_name="Block", policy="playbook", turns=(), budget=Budget(turns_limit=1),
            outcome="finished", best=best, evaluation=judged.model_copy(update={"profile": profile}),
        ).write(folder / name)  # fmt: skip


def test_the_commands_say_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["extract", "nothing", "--device", "cpu"]) == 2
    assert run(["extract", "a:B", "--input", "float32[2]", "--read", str(tmp_path / "gone"), "--device", "cpu"]) == 2
    assert run(["apply", str(tmp_path), str(tmp_path), "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert "neither a file nor module:Class" in said and "no such file or folder" in said and "no extraction" in said
