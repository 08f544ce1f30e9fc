"""Specimens as data: every known way to cheat as a full workspace, and honest twins beside them.

A specimen is a folder `specimens/CLASS/NAME/` with a `specimen.toml` and only those files that differ from the honest
workspace of its task (`honest/TASK/`). Later layers win:

  honest/TASK/            model_new.py, kernels/            honest/TASK/DEVICE/     kernels of that device
  common/DEVICE/          stream.h                          specimens/CLASS/NAME/   and its DEVICE/ folder

`payload.py` is Python that runs inside the candidate's worker although no guard can see it: it becomes a native static
initialiser that finds the interpreter through `common/key.h`. `workspace/` holds files that lie in the workspace
without belonging to the candidate.

specimen.toml: `why` (one line); `task`; `devices`; `honest = true` for a twin; `ci = true` for the one that `make test`
runs; `stopped_by`: what may stop it, `LAYER/RULE` of a violation (with wildcards), a verdict's name, or `refused` for
a workspace that isn't even opened; `reason`: words that the verdict's reason must hold; `open`: why the judge
can't stop it yet (it is expected to fail, and listed in README.md).
"""

from __future__ import annotations

import textwrap
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import Candidate, Evaluation, ProfileReport, Task
from cuda_agent.reward import reward
from cuda_agent.workspace import layout

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
LEDGER = ("<!-- ledger: begin -->", "<!-- ledger: end -->")
CLASSES = ("timing", "caching", "outputs", "stealing", "tampering", "precision", "library")
_KNOWN = {"why", "task", "devices", "honest", "ci", "stopped_by", "reason", "open"}
_ATTACK = """#include "key.h"
// `payload.py`, run while the library is loaded.
static const int armed = key::run(R"PAYLOAD(
{payload}
)PAYLOAD");
"""


@dataclass(frozen=True)
class Specimen:
    """One workspace on one device and what must become of it."""

    family: str
    name: str
    device: Device
    task: str
    why: str
    honest: bool
    ci: bool
    stopped_by: tuple[str, ...]
    reason: str
    open: str

    @property
    def id(self) -> str:
        return f"{self.family}-{self.name}-{self.device.value}"

    @property
    def folder(self) -> Path:
        return HERE / "specimens" / self.family / self.name

    @property
    def files(self) -> dict[str, str]:
        """The candidate: path -> text."""
        honest, device = HERE / "honest" / self.task, self.device.value
        found: dict[str, str] = {}
        for root in (honest, honest / device, HERE / "common" / device, self.folder, self.folder / device):
            found |= _candidate_files(root)
        payload = self.folder / "payload.py"
        if payload.exists():
            found["kernels/attack.cpp"] = _ATTACK.format(payload=payload.read_text())
        if any("key.h" in text for text in found.values()):
            found["kernels/key.h"] = (HERE / "common" / "key.h").read_text()
        return found

    @property
    def candidate(self) -> Candidate:
        return Candidate(files=self.files)

    def lay_out(self, directory: Path) -> layout.Workspace:
        """The whole workspace in a new folder. Raises UsageError where opening it is refused."""
        layout.create(task(self.task), directory, options=options(self.device))
        extra = self.folder / "workspace"
        placed = {**{name: text.encode() for name, text in self.files.items()}}
        placed |= {path.relative_to(extra).as_posix(): path.read_bytes() for path in extra.rglob("*") if path.is_file()}
        for name, content in placed.items():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.write_bytes(content)
        return layout.open_workspace(directory)


def options(device: Device) -> JudgeOptions:
    """Short budgets: a cheat has to fail in a hurried evaluation too."""
    return JudgeOptions(device=device, timing_budget_s=1.5, call_timeout_s=20.0, host_memory_mib=8192)


def task(name: str) -> Task:
    return Task(name=name, source=(HERE / "honest" / name / "task.py").read_text())


def specimens() -> list[Specimen]:
    """All of them, specimens and twins, those of one session side by side."""
    found = []
    for path in sorted((HERE / "specimens").glob("*/*/specimen.toml")):
        about = tomllib.loads(path.read_text())
        found += [_specimen(path, about, Device(name)) for name in about.get("devices", ["cpu", "cuda"])]
    return sorted(found, key=lambda item: (item.device, item.task, item.family, item.name))


def _specimen(path: Path, about: dict[str, Any], device: Device) -> Specimen:
    unknown = set(about) - _KNOWN
    honest = bool(about.get("honest"))
    if unknown or honest == bool(about.get("stopped_by")):
        raise ValueError(f"{path}: unknown keys {sorted(unknown)}, or neither honest nor stopped by anything")
    return Specimen(
        family=path.parent.parent.name,
        name=path.parent.name,
        device=device,
        task=about.get("task", "scaled_relu"),
        why=about["why"],
        honest=honest,
        ci=bool(about.get("ci")),
        stopped_by=tuple(about.get("stopped_by", ())),
        reason=about.get("reason", ""),
        open=about.get("open", ""),
    )


def _candidate_files(root: Path) -> dict[str, str]:
    paths = [root / "model_new.py", *sorted((root / "kernels").rglob("*"))]
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths if path.is_file()}


def ending(evaluation: Evaluation) -> set[str]:
    """How an evaluation ended, in the words of `stopped_by`."""
    if evaluation.verdict is Verdict.VIOLATION:
        return {f"{violation.layer}/{violation.rule}" for violation in evaluation.violations}
    return {evaluation.verdict.value}


def failure(specimen: Specimen, evaluation: Evaluation | UsageError) -> str:
    """Why the judge is wrong about a specimen or a twin; "" where it is right."""
    refused = isinstance(evaluation, UsageError)
    found = {"refused"} if refused else ending(evaluation)
    said = str(evaluation) if refused else f"{evaluation.reason}\n{evaluation.log_tail[-1500:]}"
    measured = clocks(evaluation.profile) if not refused and evaluation.profile else ""
    if specimen.honest:
        right = not refused and evaluation.verdict is Verdict.PASSED and reward(evaluation).value > 0
        return "" if right else f"an honest twin ended as {sorted(found)}: {said}"
    if not refused and (evaluation.verdict is Verdict.PASSED or reward(evaluation).value != -1):
        return f"it got through: {evaluation.verdict}\n{measured}"
    if not any(fnmatch(how, wanted) for how in found for wanted in specimen.stopped_by):
        return f"stopped, but by {sorted(found)} instead of {specimen.stopped_by}: {said}\n{measured}"
    if specimen.reason and specimen.reason not in said:
        return f"stopped, but the reason doesn't hold {specimen.reason!r}: {said}"
    return ""


def clocks(profile: ProfileReport) -> str:
    """What events and the judge's clock say of each program, µs a call."""
    lines = [f"{profile.rounds} rounds, {', '.join(profile.notes)}"]
    for name, times in {"candidate": profile.candidate, **profile.baselines}.items():
        ratio = profile.ratios.get(name)
        said = (times.latency_us, times.event_us, times.unexplained_us, times.waited_us, times.witness_low_us)
        over = f", {ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else ""
        lines.append(f"{name}: pays, events, unexplained, waited, witness {[v and round(v, 2) for v in said]}{over}")
    return "\n".join(lines)


def ledger() -> str:
    """Returns the list of tests/adversarial/README.md: a heading for each class, an item for each specimen."""
    items: dict[tuple[int, str], list[Specimen]] = {}
    for item in specimens():
        items.setdefault((CLASSES.index(item.family), item.name), []).append(item)
    lines: list[str] = []
    for (family, name), same in sorted(items.items()):
        heading = f"### {CLASSES[family].capitalize()}"
        if heading not in lines:
            lines += ["", heading, ""]
        first, devices = same[0], ", ".join(item.device.value for item in same)
        ending = "Must pass" if first.honest else f"Open: {first.open}" if first.open else ""
        ending = ending or "Stopped by " + ", ".join(f"`{how}`" for how in first.stopped_by)
        text = f"- `{name}` ({devices}). {first.why} {ending}."
        lines += textwrap.wrap(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def renewed(page: str) -> str:
    """The page with the present ledger between its markers."""
    before, _, rest = page.partition(LEDGER[0])
    return f"{before}{LEDGER[0]}\n{ledger()}\n\n{LEDGER[1]}{rest.partition(LEDGER[1])[2]}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
