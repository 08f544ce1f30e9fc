"""The judge's pool as Ray actors, on a CPU: the verdicts of real candidates, and errors that aren't theirs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("ray", reason="make train-env")

import ray

from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Device, Verdict
from cuda_agent.core.errors import DeviceError, TaskError
from cuda_agent.core.records import Candidate, Task
from cuda_agent.pool.cluster import ClusterPool
from published_workspace import axpby_candidate, axpby_task

OPTIONS = JudgeOptions(device=Device.CPU, timing_budget_s=0.5, trials=2, call_timeout_s=60.0, compiler_jobs=1)


def test_without_a_cluster_it_says_so() -> None:
    with pytest.raises(DeviceError, match="belongs to no Ray cluster"):
        ClusterPool(OPTIONS, judges=1, builders=1)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterPool]:
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "300")
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    try:
        with ClusterPool(OPTIONS, judges=1, builders=1) as made:
            yield made
    finally:
        ray.shutdown()


@pytest.mark.timeout(900)
def test_candidates_are_judged_by_actors(pool: ClusterPool) -> None:
    task = Task(name="axpby", source=axpby_task().source.replace("4096, 4096", "8, 64"))
    files = dict(axpby_candidate(Device.CPU).files)
    wrong = {**files, "kernels/axpby.cpp": files["kernels/axpby.cpp"].replace("beta * y", "1.01f * beta * y")}
    futures = {
        "honest": pool.submit(task, Candidate(files=files), with_profile=False),
        "wrong": pool.submit(task, Candidate(files=wrong), with_profile=False),
    }
    unknown = pool.submit(Task(name="bad", source="class Model: pass"), Candidate(files=files))
    verdicts = {name: future.result(timeout=800).verdict for name, future in futures.items()}
    # verified without a time
    assert verdicts == {"honest": Verdict.TIMING_VOID, "wrong": Verdict.INCORRECT}
    with pytest.raises(TaskError, match="bad"):
        unknown.result(timeout=300)
    names = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
    assert names == {"cuda-agent: builder 0", "cuda-agent: device host 1"}
