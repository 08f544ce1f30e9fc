"""The folder of a run: workspace/, transcript.jsonl, trajectory.json, evaluation.json, manifest.json, best.json (the
best candidate so far), checkpoint.json and store/ (from which a killed run resumes), config.json, task.json, logs/."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from cuda_agent.agent.storage.transcript import read_transcript
from cuda_agent.core.config import OptimizeOptions
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.files import locked, unused, write_durably
from cuda_agent.core.record import now
from cuda_agent.core.records import Resumption, RunManifest, Task, Trajectory
from cuda_agent.core.settings import differing
from cuda_agent.core.stack import read_stack

_LOCK = "lock"
_CONFIGURATION = "config.json"
#: space reserved for the records at the end of a run, in case the disk is full by then.
_RESERVE = ".reserve"
_RESERVE_BYTES = 8 << 20


class RunDirectory:
    """The paths and records of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.workspace = self.path / "workspace"
        self.logs = self.path / "logs"

    @classmethod
    def create(cls, out: str | Path | None, task_name: str) -> "RunDirectory":
        """Creates `out`, or runs/<task>-<time>. Raises UsageError if it isn't empty, StoreError if it can't be
        created."""
        path = Path(out) if out is not None else _fresh(Path("runs"), task_name)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if _failed_at_once(path):
                shutil.rmtree(path)
                path.mkdir()
            if any(path.iterdir()):
                raise UsageError(f"{path} isn't empty", "Choose another --out, or remove it")
            (path / "logs").mkdir()
        except NotADirectoryError:
            raise UsageError(f"{path} is not a folder", "Choose another --out") from None
        except FileExistsError:
            raise UsageError(f"{path} is a file", "Choose another --out") from None
        except OSError as error:
            raise StoreError(f"Can't make {path}: {error.strerror}", "Choose another --out") from None
        return cls(path)

    @contextmanager
    def lock(self, *, patience_s: float = 0.0) -> Iterator[None]:
        """Locks the run for this process, as `core.files.locked` says. Raises StoreError, and UsageError if there is no
        such folder."""
        if not self.path.is_dir():
            raise UsageError(f"No run directory {self.path}", "Give one that cuda-agent optimize left")
        with locked(self.path / _LOCK, patience_s=patience_s):
            yield

    def write_start(self, task: Task, options: OptimizeOptions, command: tuple[str, ...]) -> RunManifest:
        """Writes the task, the resolved configuration and the manifest, before anything runs. Raises StoreError."""
        configuration = options.model_dump(mode="json")
        write_durably(self.path / _CONFIGURATION, json.dumps(configuration, indent=1) + "\n")
        task.write(self.path)
        seed = options.judge.seed
        manifest = RunManifest(
            command=command or tuple(sys.argv),
            configuration=configuration,
            started=now(),
            **provenance(),
            seeds=() if seed is None else (seed,),
            digests={"task": task.key},
        )
        manifest.write(self.path)
        self.reserve()
        return manifest

    def read_start(self) -> tuple[Task, OptimizeOptions, RunManifest]:
        """Reads what `write_start` wrote. Raises UsageError if no run was started here, StoreError if it can't be
        read."""
        path = self.path / _CONFIGURATION
        if not path.is_file():
            raise UsageError(f"{self.path} is not a run directory", "Give one that cuda-agent optimize left")
        try:
            configuration = json.loads(path.read_text())
            options = OptimizeOptions.model_validate(configuration)
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise StoreError(f"{path} can't be read: {reason}", "Use the cuda-agent that wrote it") from None
        return Task.read(self.path), options, RunManifest.read(self.path)

    @property
    def was_begun(self) -> bool:
        return (self.path / RunManifest.file_name).is_file()

    def begin(self, task: Task, options: OptimizeOptions, command: tuple[str, ...]) -> RunManifest:
        """Creates the folder and writes the start of the run, or its resumption if it was begun. Raises UsageError,
        StoreError."""
        if self.was_begun:
            return self.write_resumption(self.read_start()[2], options)[0]
        return RunDirectory.create(self.path, task.name).write_start(task, options, command)

    def ended(self) -> Trajectory | None:
        """Returns the trajectory if the policy itself ended the run, else None. Raises StoreError."""
        left = Trajectory.find(self.path)
        return left if left is not None and left.outcome in ("finished", "not_covered", "gave_up") else None

    def check_unfinished(self) -> None:
        """Raises UsageError if the policy itself ended the run."""
        left = self.ended()
        if left is not None:
            cause = f"The run in {self.path} has ended: {left.outcome.replace('_', ' ')}, {len(left.turns)} turns"
            raise UsageError(cause, f"See cuda-agent show {self.path}, or begin another run")

    def write_resumption(self, manifest: RunManifest, options: OptimizeOptions) -> tuple[RunManifest, tuple[str, ...]]:
        """Writes the configuration that holds from now on. Returns what differs from the start of the run, which the
        manifest keeps too. Raises StoreError."""
        configuration = options.model_dump(mode="json")
        renewed = manifest.model_copy(update=provenance())
        differences = _differences(manifest.configuration, configuration)
        differences += _differences(_stack_facts(manifest), _stack_facts(renewed))
        entry = Resumption(started=now(), turns=len(read_transcript(self.path)), changes=tuple(differences))
        resumed = renewed.model_copy(
            update={"configuration": configuration, "resumed": (*manifest.resumed, entry), "seeds": manifest.seeds}
        )
        write_durably(self.path / _CONFIGURATION, json.dumps(configuration, indent=1) + "\n")
        resumed.write(self.path)
        self.reserve()
        return resumed, tuple(differences)

    def discard(self) -> None:
        """Removes the folder of a run that was killed before it started. Raises UsageError if it has started."""
        if self.was_begun:
            raise UsageError(f"{self.path} holds a run", "Choose another folder")
        if self.path.exists():
            shutil.rmtree(self.path)

    def clear_workspace(self) -> None:
        """Removes the workspace of a run that was killed at its start."""
        if self.workspace.exists():
            shutil.rmtree(self.workspace)

    def reserve(self) -> None:
        """Reserves disk space until the end is written. Raises StoreError."""
        write_durably(self.path / _RESERVE, b"\0" * _RESERVE_BYTES)

    def write_end(self, manifest: RunManifest, trajectory: Trajectory) -> None:
        """Writes the evaluation of the best candidate, the trajectory and the manifest with their digests, in the
        reserved space. A failure of one doesn't prevent the others. Raises StoreError."""
        (self.path / _RESERVE).unlink(missing_ok=True)
        digests = dict(manifest.digests)
        if trajectory.best is not None:
            digests["candidate"] = trajectory.best.digest
        evaluation = trajectory.evaluation
        if evaluation is not None and evaluation.build is not None and evaluation.build.library_digest is not None:
            digests["library"] = evaluation.build.library_digest
        records = (evaluation, trajectory, manifest.model_copy(update={"digests": digests}))
        failures: list[StoreError] = []
        for record in records:
            try:
                if record is not None:
                    record.write(self.path)
            except StoreError as error:
                failures.append(error)
        if failures:
            first = failures[0]
            more = f" ({len(failures) - 1} more could not be written)" if len(failures) > 1 else ""
            raise StoreError(first.cause + more, first.remedy)


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Returns a line such as `judge.timing_budget_s: 10.0, was 2.0` for every value that differs."""
    changed = differing(before, after).items()
    said = {name: ["nothing" if value is None else value for value in values] for name, values in changed}
    return [f"{name}: {new}, was {old}" for name, (old, new) in said.items()]


def _stack_facts(manifest: RunManifest) -> dict[str, Any]:
    stack = manifest.stack.model_dump(mode="json")
    stack["gpus"] = ", ".join(f"{gpu['name']} ({gpu['uuid']})" for gpu in stack["gpus"])
    return {"cuda-agent": manifest.version, "commit": manifest.commit, "stack": stack}


def provenance() -> dict[str, Any]:
    """Returns the fields of a manifest that say which program runs and where."""
    return {"version": metadata.version("cuda-agent"), "commit": current_commit(), "stack": read_stack()}


def _fresh(parent: Path, task_name: str) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return parent / unused(f"{task_name}-{stamp}", lambda name: (parent / name).exists())


def current_commit() -> str | None:
    """Returns the commit of the checkout that contains this package, with `+changes` if tracked files differ from it.
    Returns None for an installed package."""
    here = Path(__file__).parent
    if "site-packages" in here.parts:
        return None
    try:
        asked = ["git", "-C", str(here), "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+changes"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _failed_at_once(path: Path) -> bool:
    """Whether the folder holds only a run that failed before its first turn, so that it may be replaced."""
    try:
        left = Trajectory.find(path)
    except StoreError:
        return False
    return left is not None and left.outcome == "error" and not left.turns
