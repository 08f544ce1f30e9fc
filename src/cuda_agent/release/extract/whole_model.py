"""Judges a whole model with candidates in the place of submodules: its outputs against the original's, then its time.

The model is judged like a candidate, with two differences. The guard doesn't run, because each part has passed it. The
inputs are only those that the model draws, and an output may differ from the oracle by `FLOOR` even where eager is
nearer, because rounding errors grow through a deep model.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import StoreError, TaskError
from cuda_agent.core.extraction import ExtractedTask
from cuda_agent.core.records import Candidate, ProfileReport, VerifyReport
from cuda_agent.judge import MODEL_FILE, CandidateProcess, JudgeSession, Verification, failing, profile_candidate
from cuda_agent.release.extract.inside import PATCHED
from cuda_agent.release.extract.inside.requests import CountRedirected, LoadPatched, PatchedPart
from cuda_agent.workers.process import WorkerFault

#: the relative L2 error of an output that is always allowed.
FLOOR = 1e-3


@dataclass(frozen=True)
class Optimized:
    """A task of an extraction, and the run that made it faster on `device`. `candidate` takes the calls of the task's
    submodules. `speedup` is that of the part alone over eager."""

    task: ExtractedTask
    run: Path
    candidate: Candidate
    device: Device
    speedup: float


@dataclass(frozen=True)
class WholeModelResult:
    """The result, as far as the judging came. `reason` says why there is no profile. `calls` maps a path to the numbers
    of calls in one pass that the candidate and the original took."""

    reason: str = ""
    verify: VerifyReport | None = None
    profile: ProfileReport | None = None
    calls: dict[str, tuple[int, int]] = field(default_factory=dict)


def judge_whole_model(session: JudgeSession, parts: Sequence[Optimized]) -> WholeModelResult:
    """Judges the model in `session`, whose task is the whole model. A fault of the parts is in the result. Raises
    TaskError when the model fails, DeviceError, StoreError, WorkerError."""
    reference = session.reference
    reference.spec = reference.spec.model_copy(update={"variants": ()})
    libraries = []
    for part in parts:
        built = session.built(part.candidate)
        if built.library is None:
            return WholeModelResult(f"{part.task.name} doesn't compile any more: {built.report.log[-500:]}")
        libraries.append(built.library)
    process = CandidateProcess(session.workers.start(PATCHED), reference, timeout_s=session.options.call_timeout_s)
    found = WholeModelResult()
    try:
        _load(session, process, parts, libraries)
        verified = Verification(session, process, FLOOR).run()
        # The worker's counts of calls are for information only.
        told = process.ask(CountRedirected()).calls
        calls = {path: told.get(path, (0, 0)) for part in parts for path in part.task.paths}
        found = WholeModelResult(verify=verified, calls=calls)
        if not verified.passed:
            return WholeModelResult(failing(verified)[1], verified, calls=found.calls)
        process.release()
        reference.release()
        timed = profile_candidate(session, process, verified, floor=FLOOR, torch_computes=True)
    except WorkerFault as error:
        return WholeModelResult(error.fault.reason, found.verify, calls=found.calls)
    finally:
        process.close()
    if timed.report is None:
        said = timed.fault.reason if timed.fault is not None else "; ".join(v.detail for v in timed.violations)
        return WholeModelResult(said, verified, calls=found.calls)
    return WholeModelResult("", verified, timed.report, found.calls)


def _load(
    session: JudgeSession, process: CandidateProcess, parts: Sequence[Optimized], libraries: Sequence[Path]
) -> None:
    told = []
    for index, (part, library) in enumerate(zip(parts, libraries, strict=True)):
        root = process.worker.files / f"part-{index}"
        try:
            root.mkdir()
            (root / MODEL_FILE).write_text(part.candidate.files[MODEL_FILE])
            inside = root / library.name
            shutil.copyfile(library, inside)
            inside.chmod(0o555)
        except OSError as error:
            raise StoreError(f"Can't write {root}: {error.strerror}", "Free some space, or set TMPDIR") from None
        except KeyError:
            raise TaskError(f"The candidate of {part.task.name} has no {MODEL_FILE}", "Optimize it again") from None
        same = part.task.model_dump(include={"call", "inputs", "prefix", "paths"})
        told.append(PatchedPart(library=str(inside), model=str(root / MODEL_FILE), **same))
    task, init = session.task, session.reference.spec.init
    process.ask(LoadPatched(name=task.name, source=task.source, init=init, parts=tuple(told)))
