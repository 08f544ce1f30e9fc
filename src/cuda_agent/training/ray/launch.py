"""Runs a PPO stage with verl's trainer: writes its tasks and settings, follows its steps and copies its models."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cuda_agent.core.assets import tables
from cuda_agent.core.errors import StoreError, WorkerError
from cuda_agent.core.files import write_durably
from cuda_agent.core.lines import read_objects, write_lines
from cuda_agent.training.config import PpoOptions
from cuda_agent.training.engine.checkpoints import save_critic, save_policy
from cuda_agent.training.episodes import read_episodes
from cuda_agent.training.metrics import MetricsLog, of_episodes
from cuda_agent.training.ray.overrides import (
    CHECKPOINTS,
    LOOP,
    LOOP_FILE,
    TASKS_FILE,
    process_environment,
    process_overrides,
    ray_overrides,
)
from cuda_agent.training.stages.stage import StageResult, TrainingStage, draw_tasks

_OVERRIDES = "overrides.txt"
_LOG = "verl.log"
_TRACKER = "latest_checkpointed_iteration.txt"


def launch(stage: TrainingStage, options: PpoOptions) -> StageResult:
    """Runs or resumes the stage. Raises TrainingHalted, and WorkerError if verl's trainer fails."""
    stage.check_not_halted()
    done = saved_step(stage)
    if done < options.steps:
        _lay_out(stage, options)
        _drop_episodes(stage, after=done)
        _watch(stage, options, done)
    return _take_over(stage, options)


def saved_step(stage: TrainingStage) -> int:
    """Returns the last step that verl has saved, or 0."""
    tracker = stage.directory / CHECKPOINTS / _TRACKER
    return int(tracker.read_text()) if tracker.exists() else 0


def _drop_episodes(stage: TrainingStage, *, after: int) -> None:
    """Removes episodes of steps that are played again, which a killed run may have left."""
    for path in (stage.directory / "episodes").glob("*.jsonl"):
        found = read_episodes(path)
        kept = [one for one in found if one.policy_version <= after]
        if len(kept) < len(found):
            write_lines(path, kept)


def _lay_out(stage: TrainingStage, options: PpoOptions) -> None:
    import yaml

    domain = f"{type(stage.domain).__module__}:{type(stage.domain).__qualname__}"
    loop = {
        "name": LOOP,
        "_target_": "cuda_agent.training.ray.loop.EpisodeLoop",
        "run": str(stage.run),
        "stage": stage.name,
        "domain": domain,
        "checkpoint": stage.policy,
        "limits": stage.limits(options.limits).model_dump(),
    }
    write_durably(stage.directory / LOOP_FILE, yaml.safe_dump([loop]))
    _write_tasks(stage, options)
    critic = stage.critic or stage.policy
    overrides = ray_overrides(stage.options, options, stage.policy, critic, str(stage.directory))
    overrides += process_overrides(stage.options.ray, stage.device, _environment(stage))
    write_durably(stage.directory / _OVERRIDES, "\n".join(overrides) + "\n")


def _write_tasks(stage: TrainingStage, options: PpoOptions) -> None:
    """Writes every step's batch in order. The loop makes the prompts; verl only counts the row's prompt."""
    import pyarrow
    import pyarrow.parquet

    path = stage.directory / TASKS_FILE
    rows: list[dict[str, Any]] = []
    with stage.domain.open(Path(stage.policy), stage.limits(options.limits)) as opened:
        for step in range(1, options.steps + 1):
            for task in draw_tasks(opened.tasks, options.batch, stage.seed(step)):
                index = len(rows)
                rows.append(
                    {
                        "data_source": "cuda_agent",
                        "agent_name": "cuda_agent",
                        "prompt": [{"role": "user", "content": task.name}],
                        "reward_model": {"style": "rule", "ground_truth": ""},
                        "extra_info": {"index": index, "task_key": task.key, "split": "train"},
                    }
                )
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def _environment(stage: TrainingStage) -> dict[str, str]:
    return {**process_environment(stage.device), "VERL_FILE_LOGGER_PATH": str(_numbers(stage))}


def _numbers(stage: TrainingStage) -> Path:
    """Returns verl's log of numbers. verl overwrites it at its start, so each part of a run has its own."""
    return stage.directory / f"verl-{saved_step(stage)}.jsonl"


def _watch(stage: TrainingStage, options: PpoOptions, done: int) -> None:
    numbers = _numbers(stage)
    numbers.unlink(missing_ok=True)
    environment = {**os.environ, **_environment(stage)}
    command = [sys.executable, "-m", "cuda_agent.training.ray.main", str(stage.directory / _OVERRIDES)]
    with (
        open(stage.directory / _LOG, "ab") as log,
        MetricsLog(stage.run, stage.name, from_step=done + 1) as metrics,
        subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        ) as process,
    ):
        try:
            for step, values in _steps(numbers, process):
                saved = saved_step(stage)
                good = f"{stage.name}/{CHECKPOINTS}/global_step_{saved}/actor/huggingface" if saved else None
                stage.log(metrics, step, options.steps, {**_of_step(stage, step), **values}, good)
        finally:
            _end(process)
    if process.returncode != 0:
        raise WorkerError(
            f"verl's trainer ended with code {process.returncode}",
            f"See the end of {stage.directory / _LOG}; the same command goes on after step {saved_step(stage)}",
        )


def _steps(path: Path, process: subprocess.Popen[bytes]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yields every step that verl reports, until its process ends."""
    told = 0
    while True:
        ended = process.poll() is not None
        lines = read_objects(path)
        for entry in lines[told:]:
            yield int(entry["step"]), _ours(entry["data"])
        told = len(lines)
        if ended:
            return
        time.sleep(0.5)


def _ours(values: dict[str, Any]) -> dict[str, float]:
    """Returns numbers under the names of all launchers, and verl's other numbers under flat names."""
    found = {}
    for name, value in values.items():
        if isinstance(value, int | float):
            found[tables(__file__).get(name, "verl_" + name.replace("/", "_"))] = float(value)
    return found


def _of_step(stage: TrainingStage, step: int) -> dict[str, float]:
    paths = sorted((stage.directory / "episodes").glob("*.jsonl"))
    episodes = [one for path in paths for one in read_episodes(path) if one.policy_version == step]
    return of_episodes(episodes, stage.options.reward) if episodes else {}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the trainer and its processes. Ray ends its own with the trainer."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _take_over(stage: TrainingStage, options: PpoOptions) -> StageResult:
    """Copies the last models to where every stage leaves them."""
    last = stage.directory / CHECKPOINTS / f"global_step_{saved_step(stage)}"
    models = [last / part / "huggingface" for part in ("actor", "critic")]
    for model in models:
        if not any(model.glob("*.safetensors")):
            raise StoreError(f"verl left no model in {model}", f"See the end of {stage.directory / _LOG}")
    policy = save_policy((), str(models[0]), stage.directory / "policy", beside=stage.policy)
    critic = save_critic((), str(models[1]), stage.directory / "critic")
    return StageResult(policy, critic, options.steps)
