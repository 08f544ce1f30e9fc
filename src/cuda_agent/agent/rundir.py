"""The folder that a run leaves: workspace/, transcript.jsonl, trajectory.json, evaluation.json, manifest.json,
best.json (the best candidate so far, for a run that is killed), config.json, task.json, logs/."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from cuda_agent.core.config import OptimizeOptions
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.files import write_durably
from cuda_agent.core.records import RunManifest, Task, Trajectory
from cuda_agent.core.stack import read_stack


class RunDirectory:
    """Paths of one run, and what is written when."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.workspace = self.path / "workspace"
        self.logs = self.path / "logs"

    @classmethod
    def create(cls, out: str | Path | None, task_name: str) -> RunDirectory:
        """`out`, or runs/<task>-<time>. Raises UsageError when it already holds something, StoreError when it can't be
        made."""
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

    def write_start(self, task: Task, options: OptimizeOptions, command: tuple[str, ...]) -> RunManifest:
        """The task, the resolved configuration and the manifest, before anything runs. Raises StoreError."""
        configuration = options.model_dump(mode="json")
        write_durably(self.path / "config.json", json.dumps(configuration, indent=1) + "\n")
        task.write(self.path)
        seed = options.judge.seed
        manifest = RunManifest(
            command=command or tuple(sys.argv),
            configuration=configuration,
            version=metadata.version("cuda-agent"),
            commit=_commit(),
            stack=read_stack(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            seeds=() if seed is None else (seed,),
            digests={"task": task.key},
        )
        manifest.write(self.path)
        return manifest

    def write_end(self, manifest: RunManifest, trajectory: Trajectory) -> None:
        """The trajectory, the evaluation of its best candidate, the manifest with their digests. Raises StoreError."""
        trajectory.write(self.path)
        digests = dict(manifest.digests)
        if trajectory.best is not None:
            digests["candidate"] = trajectory.best.digest
        if trajectory.evaluation is not None:
            trajectory.evaluation.write(self.path)
            build = trajectory.evaluation.build
            if build is not None and build.library_digest is not None:
                digests["library"] = build.library_digest
        manifest.model_copy(update={"digests": digests}).write(self.path)


def _fresh(parent: Path, task_name: str) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path = parent / f"{task_name}-{stamp}"
    number = 1
    while path.exists():
        number += 1
        path = parent / f"{task_name}-{stamp}-{number}"
    return path


def _commit() -> str | None:
    """The commit of the checkout that this package is run from; None when it is installed elsewhere."""
    here = Path(__file__).parent
    if "site-packages" in here.parts:
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _failed_at_once(path: Path) -> bool:
    """What an optimize left whose task or machine was refused before the first turn: nothing that anybody misses."""
    if not (path / Trajectory.file_name).is_file():
        return False
    try:
        left = Trajectory.read(path)
    except StoreError:
        return False
    return left.outcome == "error" and not left.turns
