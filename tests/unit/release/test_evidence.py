"""The registry: evidence by digest, regressions that only grow, revocations that stay."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import builders
from cuda_agent.cli.main import run
from cuda_agent.cli.promote import _concluded
from cuda_agent.core.config import JudgeOptions, Regression
from cuda_agent.core.enums import Device, Phase, Precision, Verdict
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.extraction import WholeModel
from cuda_agent.core.records import Task
from cuda_agent.release import evidence, render
from cuda_agent.release.gate import GateOptions
from cuda_agent.release.lock import StackLock, read_lock
from cuda_agent.release.promote import Examined
from cuda_agent.release.records import GateResult, Promotion
from cuda_agent.release.regressions import read_failures, regressions_file, remember
from cuda_agent.release.subject import Subject
from export_runs import RECORDED
from unit.release.test_checks import whole

KEY = b"0123456789abcdef"


@pytest.fixture(scope="module")
def here() -> StackLock:
    return read_lock()


def promotion(status: str = "passed", reason: str = "it is <fast> & \x1b good") -> Promotion:
    table = [{"process": 1, "baseline": "eager", "latency_us": 9.0, "value": 2.0, "low": 1.9, "high": 2.1}]
    gates = (
        GateResult(name="lock", status="not_applicable", reason="none"),
        GateResult.model_validate({"name": "speed", "status": status, "reason": reason, "data": {"table": table}}),
    )
    return Promotion(
        task="drawdown", task_key="k", candidate_digest=builders.CANDIDATE.digest, device=Device.CPU,
        precision=Precision.TF32, gates=gates, version="0", started="2026-01-01T00:00:00+00:00", duration_s=1.0,
    )  # fmt: skip


def added(registry: Path, lock: StackLock, key: bytes | None = None) -> evidence.RegistryEntry:
    files = {evidence.LOCK: lock.to_yaml(), "gate.json": "{}"}
    files |= {f"{evidence.CANDIDATE}/{name}": text for name, text in builders.CANDIDATE.files.items()}
    digest = evidence.add(registry, files, promotion(), key)
    return next(entry for entry in evidence.entries(registry) if entry.digest == digest)


def test_it_stands_until_something_changes(tmp_path: Path, here: StackLock) -> None:
    entry = added(tmp_path, here)
    assert entry.stands and evidence.fault(tmp_path, entry, here) == ""
    other = here.model_copy(update={"software": {**here.software, "torch": "1.0"}})
    assert "torch is '1.0', locked" in evidence.fault(tmp_path, entry, other)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("candidate/model_new.py", "evil\n", "candidate/model_new.py was changed"),
        ("evaluations/extra.json", "{}", "not part of the evidence"),
        ("manifest.json", "{}", "manifest isn't"),
        ("stack.lock", None, "stack.lock is missing"),
        ("promotion.json", None, "promotion.json is missing"),
    ],
)
def test_evidence_that_was_changed(
    tmp_path: Path, here: StackLock, capsys: pytest.CaptureFixture[str], name: str, text: str | None, said: str
) -> None:
    entry = added(tmp_path, here)
    path = tmp_path / "entries" / entry.digest / name
    path.parent.mkdir(exist_ok=True)
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    assert said in evidence.fault(tmp_path, entry, here)
    # A mere listing doesn't believe it either, and revokes nothing.
    assert run(["promoted", "--registry", str(tmp_path)]) == 9
    shown = capsys.readouterr()
    assert "doesn't hold" in shown.out and "stands" not in shown.out and said in shown.err
    assert not any(event.event == "revoked" for event in evidence.history(tmp_path))


def test_a_signature(tmp_path: Path, here: StackLock) -> None:
    entry = added(tmp_path, here, KEY)
    assert evidence.fault(tmp_path, entry, here, KEY) == ""
    assert "not of this key" in evidence.fault(tmp_path, entry, here, KEY[::-1])
    unsigned = added(tmp_path / "other", here)
    assert "isn't signed" in evidence.fault(tmp_path / "other", unsigned, here, KEY)
    (tmp_path / "key").write_text("short")
    with pytest.raises(UsageError, match="16 bytes"):
        evidence.read_key(tmp_path / "key")


def test_revoked_on_another_stack_and_never_deleted(
    tmp_path: Path, here: StackLock, capsys: pytest.CaptureFixture[str]
) -> None:
    added(tmp_path, here.model_copy(update={"hardware": {**here.hardware, "cpu": "another"}}))
    arguments = ["promoted", "--registry", str(tmp_path)]
    assert run(arguments) == 0
    assert "stands" in capsys.readouterr().out
    assert run([*arguments, "--check", "--dry-run"]) == 9
    assert "would be revoked" in capsys.readouterr().err
    assert run([*arguments, "--check"]) == 9
    capsys.readouterr()
    # What is revoked already is no news.
    assert run([*arguments, "--check", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["entries"]
    assert not found["stands"] and "locked 'another'" in found["revoked"]["reason"] and found["revoked"]["when"]
    assert [event.event for event in evidence.history(tmp_path)] == ["promoted", "revoked"]
    assert (tmp_path / "entries" / found["entry"] / "manifest.json").exists()


def test_an_entry_whose_folder_is_gone_and_one_without_a_line(tmp_path: Path, here: StackLock) -> None:
    entry = added(tmp_path, here)
    (tmp_path / "history.jsonl").unlink()
    assert evidence.entries(tmp_path)[0].stands
    evidence.note(tmp_path, "promoted", promotion(), "", "f" * 64)
    gone = next(one for one in evidence.entries(tmp_path) if one.digest != entry.digest)
    assert gone.promotion is None and "is gone" in evidence.fault(tmp_path, gone, here)
    assert not evidence.revoke(tmp_path, gone, "gone").stands


def test_a_whole_models_gain_is_part_of_the_evidence(tmp_path: Path, here: StackLock) -> None:
    task = Task(name="t", source="class Model: pass\n")
    subject = Subject(tmp_path, task, builders.CANDIDATE, JudgeOptions(device=Device.CPU))
    for record in (whole(), None):
        examined = Examined(promotion(), {"process-1": builders.evaluation()}, record)
        found = _concluded(subject, GateOptions(), {}, here, tmp_path / "kept", examined, None)
        assert found.entry is not None
        kept = tmp_path / "kept" / "entries" / found.entry / WholeModel.file_name
        assert WholeModel.read(kept.parent) == record if record is not None else not kept.exists()


def test_no_registry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["promoted", "--registry", str(tmp_path / "none")]) == 2
    assert run(["promoted", "--registry", str(tmp_path), "--dry-run"]) == 2
    assert run(["promoted", "--registry", str(tmp_path)]) == 0


def failing(seed: int, variant: str | None = None) -> object:
    return builders.evaluation(
        verdict=Verdict.INCORRECT, phase=Phase.VERIFY, verify=builders.verify(False), profile=None, reason="far off",
        failing=Regression(seed=seed, weights_seed=2, variant=variant),
    )  # fmt: skip


def test_regressions_only_grow(tmp_path: Path) -> None:
    assert len(remember(tmp_path, "k", [failing(1), failing(1), builders.evaluation()])) == 1
    assert len(remember(tmp_path, "k", [failing(1), failing(1, "large")])) == 1
    assert len(remember(tmp_path, "k", [failing(1)], batch=3)) == 1
    path = regressions_file(tmp_path, "k")
    path.write_text(path.read_text() + '{"cut sho')
    assert [failure.batch for failure in read_failures(tmp_path, "k")] == [None, None, 3]
    remember(tmp_path, "k", [failing(9)])
    assert [failure.regression.seed for failure in read_failures(tmp_path, "k")] == [1, 1, 1, 9]
    path.write_text("no failure\n" + path.read_text())
    with pytest.raises(StoreError, match="line 1"):
        read_failures(tmp_path, "k")
    assert read_failures(tmp_path, "another") == ()


def test_junit_and_html(here: StackLock) -> None:
    suite = ET.fromstring(render.junit(promotion("failed")))
    assert suite.attrib["failures"] == "1" and suite.attrib["skipped"] == "1"
    failure = suite.find("testcase/failure")
    assert failure is not None and failure.attrib["message"] == "it is <fast> & ? good"
    assert ET.fromstring(render.junit_error("run", "no\x00 run")).attrib["errors"] == "1"
    page = render.html(promotion(), here)
    assert "&lt;fast&gt;" in page and "<script" not in page and "http" not in page and "1.900 to 2.100" in page


def test_where_promote_writes_is_looked_at_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["promote", str(tmp_path), "--html", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert run(["promote", str(tmp_path), "--junit", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_a_lock_that_is_missing_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["promote", str(RECORDED)]) == 2
    assert "There is no lock" in capsys.readouterr().err


def test_promote_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junit = tmp_path / "junit.xml"
    assert run(["promote", str(tmp_path / "none"), "--junit", str(junit), "--registry", str(tmp_path / "r")]) == 2
    assert "not a run directory" in capsys.readouterr().err
    assert ET.parse(junit).getroot().attrib["errors"] == "1"
    assert not (tmp_path / "r").exists()


def test_a_damaged_line_of_the_history_is_an_error(tmp_path: Path, here: StackLock) -> None:
    """It may be the one that revoked; only one without its end is what a kill left."""
    entry = added(tmp_path, here)
    evidence.revoke(tmp_path, entry, "a race")
    path = tmp_path / "history.jsonl"
    whole = path.read_text()
    path.write_text(whole.rstrip("\n")[:-9])
    assert [event.event for event in evidence.history(tmp_path)] == ["promoted"]
    path.write_text(whole.rstrip("\n")[:-9] + "\n")
    with pytest.raises(StoreError, match="line 2: "):
        evidence.entries(tmp_path)


def test_nothing_is_shown_of_changed_evidence_that_was_revoked(
    tmp_path: Path, here: StackLock, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = added(tmp_path, here)
    place = tmp_path / "entries" / entry.digest / Promotion.file_name
    place.write_text(place.read_text().replace("good", "99.9x"))
    assert run(["promoted", "--registry", str(tmp_path), "--check"]) == 9
    assert "99.9x" not in capsys.readouterr().out
    assert run(["promoted", "--registry", str(tmp_path)]) == 0
    assert "99.9x" not in capsys.readouterr().out
    assert run(["promoted", "--registry", str(tmp_path), "--json"]) == 0
    assert "99.9x" not in capsys.readouterr().out
