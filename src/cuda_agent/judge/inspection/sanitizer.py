"""Runs compute-sanitizer over one call: memcheck finds bad accesses, racecheck finds races in shared memory.

The candidate runs from files (`traced`). A finding convicts. No finding says only that this call was clean.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent.core.assets import program, tables
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import DeviceError, UsageError
from cuda_agent.core.records import Candidate, Evaluation, Violation
from cuda_agent.judge.inspection.traced import find_cuda_tool, run_traced, written_call
from cuda_agent.judge.resources import Resources
from cuda_agent.workers.gpulock import gpu_lock, gpu_uuid

TOOLS = ("memcheck", "racecheck")
FOUND = 86
TIMEOUT_S = 300.0
MOST_FINDINGS = 20
_REMEDY = "Install it with the CUDA toolkit (Debian: cuda-sanitizer), or set CUDA_HOME to a toolkit that has it"

_PREFIX = re.compile(r"^=+ ?")


@dataclass
class Paragraph:
    """A finding as the tool prints it: its first line, and the lines that say where."""

    head: str
    lines: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        """The lines without addresses of threads and the host's stack, which differ from thread to thread."""
        kept = [line for line in self.lines if line.startswith(("at ", "and ", "Access to"))]
        return ", ".join(kept)

    @property
    def place(self) -> str:
        """The faulting instruction."""
        return next((line for line in self.lines if line.startswith("at ")), "")


def find_sanitizer() -> Path:
    """Returns the path of compute-sanitizer. Raises DeviceError where it is missing."""
    found = find_cuda_tool("compute-sanitizer", ("bin", "compute-sanitizer"))
    if found is None:
        raise DeviceError("compute-sanitizer was not found", _REMEDY)
    return found


def require_sanitizer(device: Device) -> None:
    """Raises UsageError on the CPU and DeviceError where the tool is missing, before time is spent."""
    if device is not Device.CUDA:
        raise UsageError("--sanitize needs a workspace for cuda: compute-sanitizer checks GPU code", "Drop --sanitize")
    find_sanitizer()


def sanitized(session: Resources, candidate: Candidate, evaluation: Evaluation) -> Evaluation:
    """Returns the evaluation with the tools' findings. Its verdict is UNSAFE where they found something. Only a
    candidate that passed verification is run. Raises DeviceError where a tool can't run."""
    if evaluation.verify is None or not evaluation.verify.passed:
        return evaluation
    begin = time.monotonic()
    return merged(evaluation, sanitizer_findings(session, candidate), time.monotonic() - begin)


def sanitizer_findings(session: Resources, candidate: Candidate) -> list[Violation]:
    """Returns the tools' findings on a candidate that builds and that the guard accepts. It need not be verified, since
    a race is often the reason for wrong results. Raises DeviceError where a tool can't run."""
    library = session.built(candidate).library
    found: list[Violation] = []
    with gpu_lock(gpu_uuid(session.options.device) or "cpu"):
        for tool in TOOLS:
            session.progress("sanitize", tool)
            found += run_tool(session, candidate, library, tool)
    session.reference.release()
    return found


def merged(evaluation: Evaluation, found: Sequence[Violation], seconds: float) -> Evaluation:
    """Adds findings to an evaluation. A worse verdict stands. The profile stays for information and earns no reward."""
    changes: dict[str, Any] = {
        "durations_s": {**evaluation.durations_s, "sanitize": seconds},
        "violations": (*evaluation.violations, *found),
    }
    if found and evaluation.verdict in (Verdict.PASSED, Verdict.QUARANTINED, Verdict.TIMING_VOID):
        changes |= {"verdict": Verdict.UNSAFE, "reason": f"{found[0].rule}: {found[0].detail}"[:4096]}
    return Evaluation.model_validate({**dict(evaluation), **changes})


def run_tool(session: Resources, candidate: Candidate, library: Path | None, tool: str) -> list[Violation]:
    """Runs one call on fresh inputs and weights under one tool."""
    sanitizer = find_sanitizer()
    with written_call(session, candidate, library) as (files, scratch):
        code, text = run_traced(
            session,
            command(sanitizer, tool, files),
            scratch,
            (files, sanitizer.resolve().parents[1]),
            timeout_s=TIMEOUT_S,
            environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        )
    return conclude(tool, code, text)


def command(sanitizer: Path, tool: str, files: Path) -> list[str]:
    """Returns the command. It doesn't report API errors, since torch provokes harmless ones, and sets no time limit for
    the start of CUDA, which torch delays."""
    return [
        str(sanitizer), "--tool", tool, "--error-exitcode", str(FOUND), "--target-processes", "all",
        "--launch-timeout", "0", "--print-limit", "200", *(["--report-api-errors", "no"] if tool == "memcheck" else []),
        *program("cuda_agent.workers.inside.once", str(files)),
    ]  # fmt: skip


def conclude(tool: str, code: int | None, text: str) -> list[Violation]:
    """Returns the findings of a run. `code` is the tool's exit code, None when it ran out of time. Raises DeviceError
    where the tool itself failed."""
    found = parse(text, tool)
    if found:
        return found
    if code is None:
        return [_violation(tool, f"no result within {TIMEOUT_S:.0f} s, so nothing is shown")]
    if "SUMMARY" not in text:
        raise DeviceError(f"compute-sanitizer ({tool}) could not run: {_last_line(text)}", _REMEDY, detail=text[-4096:])
    if code != 0:
        return [_violation(tool, f"the call failed under the tool (exit code {code}): {_last_line(text, own=False)}")]
    return []


def parse(text: str, tool: str) -> list[Violation]:
    """Returns the findings of a report. The same fault at the same instruction is one finding with a count."""
    counts: dict[tuple[str, str], list[Paragraph]] = {}
    libraries = re.compile(tables(__file__)["libraries"])
    for paragraph in paragraphs(text):
        if tool == "racecheck" and libraries.search(" ".join(paragraph.lines)):
            continue
        counts.setdefault((paragraph.head.split(" of size")[0], paragraph.place), []).append(paragraph)
    found = []
    for same in list(counts.values())[:MOST_FINDINGS]:
        first, times = same[0], f" ({len(same)} times)" if len(same) > 1 else ""
        found.append(_violation(tool, f"{first.head}{', ' + first.where if first.where else ''}{times}"))
    return found


def paragraphs(text: str) -> list[Paragraph]:
    """Splits the tool's lines, which begin with `=========`. A finding's first line has no indentation, its others have
    some."""
    found: list[Paragraph] = []
    current: Paragraph | None = None
    remarks = tuple(tables(__file__)["remarks"])
    for line in text.splitlines():
        if not line.startswith("========="):
            continue
        body = _PREFIX.sub("", line)
        if not body.strip():
            current = None
        elif body[0].isspace():
            if current is not None:
                current.lines.append(body.strip())
        elif body.startswith(remarks):
            current = None
        else:
            current = Paragraph(body.strip())
            found.append(current)
    return found


def _violation(tool: str, detail: str) -> Violation:
    return Violation(rule=tool, layer="sanitizer", detail=detail[:1000])


def _last_line(text: str, *, own: bool = True) -> str:
    """Returns the last line of the log, or the last one that isn't the tool's."""
    lines = [line for line in text.splitlines() if line.strip("= ") and (own or not line.startswith("========="))]
    return lines[-1].strip()[:300] if lines else "it printed nothing"
