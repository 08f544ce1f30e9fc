"""Optimizes one task with one policy in one run directory: the work of `cuda-agent optimize`."""

from collections.abc import Mapping
from pathlib import Path

from cuda_agent.agent import parallel as parallel_agents
from cuda_agent.agent.context import Progress
from cuda_agent.agent.device import resolve_device
from cuda_agent.agent.policies.registry import POLICIES, policy_name
from cuda_agent.agent.policy import PolicyMaker
from cuda_agent.agent.run import AgentRun, Watch
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.agent.taskfile import load_task
from cuda_agent.core.config import JudgeOptions, LanguageModelOptions, Limits, OptimizeOptions
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import Task, Trajectory
from cuda_agent.llm.client import prepare
from cuda_agent.llm.keys import Key


def optimize(
    task: Task | str | Path,
    *,
    out: str | Path | None = None,
    device: str = "auto",
    policy: str | PolicyMaker = "playbook",
    precision: str = "tf32",
    turns: int | None = None,
    limits: Mapping[str, int | float | None] | None = None,
    parallel: int = 1,
    seed_with: str | None = None,
    llm: LanguageModelOptions | None = None,
    api_key_file: str | Path | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
    command: tuple[str, ...] = (),
    **judge: object,
) -> Trajectory:
    """Makes a task faster. Returns the trajectory, which is also in the run directory (`trajectory.directory`).

    `task` is a record or the path of a task file. `policy` is a name, or a function that makes one from its `Brief`.
    `limits` are those of `Limits`; `turns` is one of them. `parallel` is the number of independent agents; the best
    candidate of all counts. With `seed_with="playbook"` the playbook's best candidate is in the workspace at the start.
    `llm` configures the model of the policy "llm"; its key comes from `api_key_file` or the environment. Further
    keywords are settings of the judge (`JudgeOptions`, such as `timing_budget_s=10`). An interrupt ends the run; it is
    an outcome, not an exception.

    Raises UsageError, TaskError, DeviceError, SandboxError, StoreError, WorkerError. The run directory stays complete,
    and `resume` continues it.
    """
    record = task if isinstance(task, Task) else load_task(task)
    name = policy_name(policy)
    options = OptimizeOptions.parse(
        {
            "judge": JudgeOptions.parse({"device": resolve_device(device), "precision": precision, **judge}),
            "policy": name,
            "limits": {**({} if turns is None else {"turns": turns}), **(limits or {})},
            "parallel": parallel,
            "seed_with": seed_with,
            "llm": llm,
        }
    )
    return start(
        record, options, out=out, maker=policy, api_key_file=api_key_file, progress=progress, watch=watch,
        command=command,
    )  # fmt: skip


def start(
    task: Task,
    options: OptimizeOptions,
    *,
    out: str | Path | None = None,
    maker: str | PolicyMaker | None = None,
    api_key_file: str | Path | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
    command: tuple[str, ...] = (),
) -> Trajectory:
    """Makes a task faster, by options that are complete. `maker` makes the policy if its name doesn't. Raises what
    `optimize` raises."""
    policy = options.policy if maker is None else maker
    if options.parallel > 1 and options.policy not in POLICIES and isinstance(policy, str):
        raise UsageError(
            "Agents side by side on one checkpoint would all say the same",
            "Leave parallel out: a checkpoint plays several episodes by itself",
        )
    key = _key(options, api_key_file)
    directory = RunDirectory.create(out, task.name)
    with directory.lock():
        manifest = directory.write_start(task, options, command)
        return _play(AgentRun(task, options, policy, directory, manifest, key=key), progress, watch)


def _key(options: OptimizeOptions, file: str | Path | None) -> Key | None:
    """Raises UsageError if the policy is a language model that can't be reached."""
    return prepare(options.llm, Path(file) if file is not None else None) if options.policy == "llm" else None


def _play(run: AgentRun, progress: Progress | None, watch: Watch | None) -> Trajectory:
    run.progress, run.watch = progress or run.progress, watch or run.watch
    return parallel_agents.play(run) if run.options.parallel > 1 else run.play()


def resume(
    directory: str | Path,
    *,
    policy: PolicyMaker | None = None,
    limits: Mapping[str, int | float | None] | None = None,
    api_key_file: str | Path | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Trajectory:
    """Continues a run that was killed, was interrupted or reached a limit, at exactly the turn where it stopped.

    `policy` is the maker of a policy without a name. `limits` are those that change. Other differences from the start
    of the run (versions, hardware) are reported as progress and kept in the manifest.

    Raises UsageError if there is no run or the policy ended it, StoreError while another process holds it, and what
    `optimize` raises.
    """
    run_directory = RunDirectory(Path(directory))
    with run_directory.lock():
        task, options, manifest = run_directory.read_start()
        run_directory.check_unfinished()
        if limits:
            changed = Limits.parse({**options.limits.model_dump(), **limits})
            options = options.model_copy(update={"limits": changed})
        name = policy_name(policy if policy is not None else options.policy)
        key = _key(options.model_copy(update={"policy": name}), api_key_file)
        resolve_device(options.judge.device.value)
        manifest, changes = run_directory.write_resumption(manifest, options.model_copy(update={"policy": name}))
        if progress is not None:
            for change in changes:
                progress("resume", change)
        return _play(AgentRun(task, options, policy or name, run_directory, manifest, key=key), progress, watch)
