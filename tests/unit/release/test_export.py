"""Exports as texts: what is refused, what is rewritten, what a project holds."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_agent.core.errors import CudaAgentError, KeepOriginal, StoreError, TaskError, UsageError
from cuda_agent.core.records import Ratio
from cuda_agent.release import evidence
from cuda_agent.release.export import export as exporting
from cuda_agent.release.export.export import ExportKind, package_name, write_project
from cuda_agent.release.export.files import evidence as summary
from cuda_agent.release.export.files import project_files
from cuda_agent.release.export.rewrite import distributions, libraries, with_local_extension, wrapped_call
from cuda_agent.release.export.source import NotPassed, read_finished
from cuda_agent.release.export.verified import verified
from cuda_agent.release.records import GateResult, Promotion
from cuda_agent.workers.requests.reference import TaskSpec
from export_runs import RECORDED, TASK, frozen, on_gpu, recorded

KINDS = [kind.value for kind in ExportKind]


def _run(tmp_path: Path, **changes: object) -> Path:
    """A copy of the recorded run with fields of its trajectory replaced."""
    folder = tmp_path / "run"
    shutil.copytree(RECORDED, folder)
    document = json.loads((folder / "trajectory.json").read_text())
    for place, value in changes.items():
        inner = document
        *parts, last = place.split("__")
        for part in parts:
            inner = inner[part]
        inner[last] = value
    (folder / "trajectory.json").write_text(json.dumps(document))
    return folder


def test_a_run_without_a_passed_candidate_is_refused_with_the_reason(tmp_path: Path) -> None:
    folder = _run(tmp_path, evaluation__verdict="wrong_output", evaluation__reason="trial 2: too far", reward=None)
    document = json.loads((folder / "trajectory.json").read_text())
    document["evaluation"]["profile"] = None
    (folder / "trajectory.json").write_text(json.dumps(document))
    with pytest.raises(CudaAgentError) as caught:
        read_finished(folder)
    assert caught.value.exit_code in (6, 9)


def test_runs_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run directory"):
        read_finished(tmp_path)
    with pytest.raises(NotPassed, match="no judged candidate"):
        read_finished(_run(tmp_path, evaluation=None, best=None, reward=None))
    shutil.rmtree(tmp_path / "run")
    begun = _run(tmp_path)
    (begun / "trajectory.json").unlink()
    with pytest.raises(UsageError, match="hasn't judged a candidate"):
        read_finished(begun)


def test_an_evaluation_of_another_task_is_refused(tmp_path: Path) -> None:
    folder = _run(tmp_path)
    task = json.loads((folder / "task.json").read_text())
    task["source"] += "# changed\n"
    (folder / "task.json").write_text(json.dumps(task))
    with pytest.raises(NotPassed, match="of another task"):
        read_finished(folder)


def test_what_was_promoted_is_exported_as_long_as_it_stands(tmp_path: Path) -> None:
    run = read_finished(RECORDED)
    gates = (GateResult(name="speed", status="passed", reason="fast"),)
    promotion = Promotion(
        task=run.task.name, task_key=run.task.key, candidate_digest=run.candidate.digest, device=run.options.device,
        precision=run.options.precision, gates=gates, version="0", started="2026-01-01T00:00:00+00:00", duration_s=1.0,
    )  # fmt: skip
    files = {"task.json": run.task.to_json(), "evaluations/process-1.json": run.evaluation.to_json()}
    files |= {f"{evidence.CANDIDATE}/{path}": text for path, text in run.candidate.files.items()}
    entry = tmp_path / "entries" / evidence.add(tmp_path, files, promotion)
    found = read_finished(entry)
    assert (found.task, found.candidate, found.evaluation) == (run.task, run.candidate, run.evaluation)
    assert found.options.device is run.options.device
    kept = (entry / "task.json").read_text()
    (entry / "task.json").write_text(kept + " ")
    with pytest.raises(NotPassed, match=r"isn't valid any more: task\.json was changed"):
        read_finished(entry)
    (entry / "task.json").write_text(kept)
    files.pop("evaluations/process-1.json")
    with pytest.raises(StoreError, match="Can't read the entry"):
        read_finished(tmp_path / "entries" / evidence.add(tmp_path, files, promotion))
    standing = next(one for one in evidence.entries(tmp_path) if one.digest == entry.name)
    evidence.revoke(tmp_path, standing, "a race was found")
    with pytest.raises(NotPassed, match="isn't valid any more: a race was found"):
        read_finished(entry)
    with pytest.raises(NotPassed, match="has no history of copied"):
        read_finished(Path(shutil.copytree(entry, tmp_path / "elsewhere" / "entries" / "copied")))


def test_what_is_not_faster_stays_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = recorded()
    profile = run.evaluation.profile
    assert profile is not None
    fast, slow = (
        run.evaluation.model_copy(update={"profile": profile.model_copy(update={"ratios": {profile.matched: ratio}})})
        for value in (1.4, 0.8)
        if (ratio := Ratio(baseline=profile.matched, value=value, low=value - 0.1, high=value + 0.1))
    )
    assert "Keep the original" not in summary(fast) and "**Keep the original: " in summary(slow)
    monkeypatch.setattr(exporting, "read_finished", lambda path: replace(run, evaluation=slow))
    with pytest.raises(KeepOriginal, match=r"Keep the original: the closest attempt is 0\.80 times as fast as") as told:
        exporting.export(tmp_path, ExportKind.PACKAGE, out=tmp_path / "out")
    assert told.value.exit_code == 15 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("matmul-3", False, "matmul_3"),
        ("3_conv", False, "task_3_conv"),
        ("Größe", False, None),
        ("fast-norm", True, "fast_norm"),
        ("fast norm", True, None),
        ("torch", True, None),
        ("json", True, None),
        ("class", True, None),
        ("../up", True, None),
        ("", True, None),
    ],
)
def test_names(name: str, given: bool, expected: str | None) -> None:
    if expected is None and given:
        with pytest.raises(UsageError):
            package_name(name, ExportKind.PACKAGE, given=given)
    else:
        word = package_name(name, ExportKind.PACKAGE, given=given)
        assert word.isidentifier() and (expected is None or word == expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import cuda_extension\n", "from . import cuda_extension\n"),
        ("import cuda_extension as ext  # ours\n", "from . import cuda_extension as ext  # ours\n"),
        ("import torch, cuda_extension\n", "import torch\nfrom . import cuda_extension\n"),
        ("def f():\n    import cuda_extension\n", "def f():\n    from . import cuda_extension\n"),
        (
            "from cuda_extension import (\n    a,\n    b as c,\n)\nx = 1\n",
            "from .cuda_extension import a, b as c\nx = 1\n",
        ),
        ("text = 'import cuda_extension'\n", "text = 'import cuda_extension'\n"),
    ],
)
def test_the_extension_is_the_packages_own(text: str, expected: str) -> None:
    assert with_local_extension(text) == expected


def test_an_import_beside_other_code_is_refused() -> None:
    with pytest.raises(UsageError, match="line 1"):
        with_local_extension("import torch; import cuda_extension\n")


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        ("(self, x): return self.layer(x)", {"child": "layer", "args": [{"p": 0}], "kwargs": {}}),
        (
            "(self, x, m): return self.layer(x, None, mask=m, scale=2.0)",
            {"child": "layer", "args": [{"p": 0}, {"v": None}], "kwargs": {"mask": {"p": 1}, "scale": {"v": 2.0}}},
        ),
        ("(self, x): return self.layer(x) + 1", None),
        ("(self, x): return self.layer(x)[0]", None),
        ("(self, x): return other.layer(x)", None),
        ("(self, x, y): return self.layer(x)", None),
        ("(self, x): return self.layer(x, x)", None),
        ("(self, *x): return self.layer(*x)", None),
        ("(self, x): return self.layer(x.float())", None),
    ],
)
def test_a_wrapper_of_one_submodule_is_seen(forward: str, expected: object) -> None:
    assert wrapped_call(f"class Model:\n    def forward{forward}\n") == expected


def test_libraries_and_distributions() -> None:
    files = {"kernels/a.cu": "#include <cublasLt.h>\n", "kernels/b.h": '#include "cudnn_graph.h"\n', "model_new.py": ""}
    assert libraries(files) == ["cublasLt", "cudnn"]
    assert distributions(TASK) == ["transformers"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [recorded, frozen, on_gpu])
def test_every_text_of_a_project_parses(kind: str, make: object, tmp_path: Path) -> None:
    files = project_files(*make(), kind, "llama_norm")  # type: ignore[operator]
    for name, text in files.items():
        assert "{{" not in text and "{%" not in text, name
        if name.endswith(".py"):
            ast.parse(text)
            assert "cuda_agent" not in text.replace("# cuda_agent", ""), f"{name} needs nothing of ours"
        elif name.endswith(".json"):
            json.loads(text)
        elif name.endswith(".toml"):
            tomllib.loads(text)
    run = make()[0]  # type: ignore[operator]
    native = {name: text for name, text in run.candidate.files.items() if name.startswith("kernels/")}
    for name, text in native.items():
        assert text in [other for path, other in files.items() if path.endswith(f"/{name}")], "as it was judged"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    own = [str(tmp_path / name) for name in files if name.endswith(".py") and "reference" not in name]
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F,E9,B023", *own]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_project_for_the_hub_names_its_sources() -> None:
    files = project_files(*on_gpu(), "hf-kernels", "llama_norm")
    build = tomllib.loads(files["build.toml"])
    sources = [*build["torch"]["src"], *build["kernel"]["llama_norm_cuda"]["src"]]
    assert all(name in files for name in sources)
    assert {name for name in files if name.endswith((".cpp", ".cu"))} <= set(sources)
    assert build["general"]["name"] == "llama-norm" and build["general"]["backends"] == ["cuda"]
    assert build["kernel"]["llama_norm_cuda"]["cuda-capabilities"] == ["9.0a"]


def test_a_hostile_name_stays_text() -> None:
    run, described = recorded()
    task = run.task.model_copy(update={"name": 'x"""\n+{{ 1 }}\\'})
    run = type(run)(task, run.options, run.candidate, run.evaluation)
    for kind in KINDS:
        for name, text in project_files(run, described, kind, "llama_norm").items():
            if name.endswith(".py"):
                ast.parse(text)
            if name.endswith(".toml"):
                tomllib.loads(text)


def test_what_cannot_be_guarded_is_refused() -> None:
    run, described = recorded()
    spec = TaskSpec(
        init=described.init, inputs_spec=described.inputs_spec, inputs=described.inputs, state=described.state,
        outputs_spec=described.outputs_spec, outputs=described.outputs, mutated=(0,), products=False,
        policy_differs=False, variants=(),
    )  # fmt: skip
    with pytest.raises(TaskError, match="in place"):
        verified(run, spec)
    named = {"tuple": [{"t": 0}], "note": "ModelOutput"}
    with pytest.raises(TaskError, match="a ModelOutput"):
        verified(run, spec.model_copy(update={"mutated": (), "outputs_spec": named}))


def test_a_project_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out"
    write_project(*recorded(), ExportKind.PACKAGE, "llama_norm", target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    with pytest.raises(UsageError, match="isn't empty"):
        write_project(*recorded(), ExportKind.PACKAGE, "llama_norm", target)
    run, described = recorded()
    twice = {**run.candidate.files, "kernels/inner/rows_sum_mul_rsqrt.cpp": "int x;\n"}
    candidate = run.candidate.model_copy(update={"files": twice})
    with pytest.raises(UsageError, match="same object file"):
        write_project(
            type(run)(run.task, run.options, candidate, run.evaluation),
            described,
            ExportKind.PACKAGE,
            "n",
            tmp_path / "b",
        )
    assert not (tmp_path / "b").exists()
