"""Episodes of `EpisodeLoop` in Ray actors, on a CPU: real tools, real builds and the real judge in its sandboxes, with
a tiny model. Actors die in the middle, and the next episode is judged all the same."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl", reason="make train-env")

import chat_models
import ray

from cuda_agent.agent.trained.checkpoint import load_dialogue, load_settings
from cuda_agent.agent.trained.dialogue import DialogueSettings
from cuda_agent.core.enums import Device
from cuda_agent.core.lines import write_lines
from cuda_agent.core.records import Candidate, Task
from cuda_agent.llm import tagged
from cuda_agent.tasks.records import DatasetTask
from cuda_agent.training.config import ModelOptions, TrainingOptions
from cuda_agent.training.engine.sampler import PolicyCopy
from cuda_agent.training.episodes import Episode, read_episodes
from cuda_agent.training.ray.overrides import process_environment
from published_workspace import axpby_candidate, axpby_task

# Actors can't import a test's module.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

TASK = Task(name="axpby", source=axpby_task().source.replace("4096, 4096", "8, 64"))
HOST = "cuda-agent: device host 1"
JUDGE = {"timing_budget_s": 0.3, "trials": 1, "compiler_jobs": 1, "call_timeout_s": 60.0}


def written(candidate: Candidate) -> str:
    """An answer that writes a candidate and has it verified."""
    calls = [tagged.write_call("Write", {"path": path, "content": text}) for path, text in candidate.files.items()]
    return "\n".join([*calls, tagged.write_call("Verify", {})])


class Model:
    """verl's client of rollout servers: the first turn is a given text, the others are drawn from the tiny model."""

    def __init__(self, checkpoint: Path, text: str) -> None:
        self._policy = PolicyCopy(checkpoint, ModelOptions(), device="cpu")
        self._first = load_dialogue(checkpoint, load_settings(checkpoint)).encode_turn(text)
        self._known = set[str]()

    async def generate(self, request: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        room = sampling_params["max_tokens"]
        if request not in self._known:
            self._known.add(request)
            own, logs = self._first[:room], [-0.5] * len(self._first[:room])
        else:
            generate = self._policy.generate(
                turn_tokens=min(room, 8), context_tokens=len(prompt_ids) + room, seed=len(self._known)
            )
            (drawn,) = generate([prompt_ids])
            own, logs = list(drawn.token_ids), list(drawn.log_probabilities)
        return SimpleNamespace(token_ids=own, log_probs=logs, extra_fields={"global_steps": 0})


class Player:
    """An actor with a loop, as verl's workers are."""

    def __init__(self, run: str, text: str, response_length: int = 8192) -> None:
        self._run, self._text = Path(run), text
        rollout = SimpleNamespace(prompt_length=8192, response_length=response_length)
        self._config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
        self._loop: Any = None

    async def play(self, index: int) -> tuple[list[int], float]:
        """Returns the mask and the reward as verl receives them."""
        from cuda_agent.training.ray.loop import EpisodeLoop

        checkpoint = self._run / "model"
        if self._loop is None:
            self._loop = EpisodeLoop(
                trainer_config=SimpleNamespace(config=self._config), server_manager=Model(checkpoint, self._text),
                tokenizer=load_dialogue(checkpoint, load_settings(checkpoint)).tokenizer, processor=None,
                dataset_cls=None, data_config=SimpleNamespace(config={}), run=str(self._run), stage="ppo",
                domain="cuda_agent.training.domain:KernelDomain", checkpoint=str(checkpoint), limits={"turns": 2},
            )  # fmt: skip
        out = await self._loop.run({}, extra_info={"task_key": TASK.key, "index": index})
        return out.response_mask, out.reward_score

    def pid(self) -> int:
        return os.getpid()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A training's folder, and a cluster."""
    chat_models.save_model("qwen2_5", tmp_path / "model", max_position_embeddings=16384)
    DialogueSettings(kind="tools", turns=2, turn_tokens=4096, context_tokens=16384).write(tmp_path / "model")
    write_lines(tmp_path / "tasks.jsonl", [DatasetTask(task=TASK, ops=("axpby",), composer="test", number=0)])
    for name, value in process_environment("cpu").items():
        monkeypatch.setenv(name, value)
    environment = {**process_environment("cpu"), "OMP_NUM_THREADS": "1"}
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
    try:
        yield tmp_path
    finally:
        ray.shutdown()


def configure(run: Path, judges: int) -> None:
    options = TrainingOptions.parse(
        {
            "name": "loop", "launcher": "ray", "device": "cpu",
            "environment": {"tasks": str(run / "tasks.jsonl"), "judge": JUDGE, "play": {"threads": 1}},
            "ray": {"judges": judges, "builders": 1, "gpus_per_node": 1},
        }
    )  # fmt: skip
    (run / "config.json").write_text(options.model_dump_json())


def actor(run: Path, text: str) -> Any:
    return ray.remote(Player).options(num_cpus=1).remote(str(run), text)


def episodes(run: Path) -> list[Episode]:
    found = [one for path in (run / "ppo/episodes").glob("*.jsonl") for one in read_episodes(path)]
    return sorted(found, key=lambda one: one.seed)


def family(pid: int) -> set[int]:
    """A process and all that it began."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def alive(pids: set[int]) -> set[int]:
    found = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        found |= {pid} if state != "Z" else set()
    return found


@pytest.mark.timeout(1500)
def test_a_loop_judges_in_its_own_actor_and_leaves_no_process(run: Path) -> None:
    """The judge's processes and sandboxes are the actor's children: those of a killed actor end with it."""
    configure(run, judges=0)
    good = axpby_candidate(Device.CPU)
    first = actor(run, written(good))
    mask, reward = ray.get(first.play.remote(0), timeout=700)
    pid = ray.get(first.pid.remote())
    held = family(pid)
    assert len(held) > 2, "the judge has processes"
    assert mask[-1] == 1 and 0 in mask and reward >= 1.0
    playing = first.play.remote(1)
    time.sleep(0.3)
    held |= family(pid)
    ray.kill(first)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(playing, timeout=60)
    deadline = time.monotonic() + 60
    while alive(held) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not alive(held)
    wrong = {**good.files, "kernels/axpby.cpp": good.files["kernels/axpby.cpp"].replace("beta * y", "1.01f * beta * y")}
    other = actor(run, written(Candidate(files=wrong)))
    mask, reward = ray.get(other.play.remote(2), timeout=700)
    assert mask[-1] == 1 and reward == -1.0
    assert [(one.seed, one.reward) for one in episodes(run)][-1] == (2, -1.0)
    assert all(one.evaluations >= 1 and one.mask[-1] == 1 for one in episodes(run))


@pytest.mark.timeout(1500)
def test_a_judge_s_actor_dies_and_the_next_episode_is_judged(run: Path) -> None:
    """The pool's actors build and judge in their own sandboxes. The episode that loses its judge has no reward and no
    weight."""
    configure(run, judges=1)
    good = axpby_candidate(Device.CPU)
    player = actor(run, written(good))
    mask, reward = ray.get(player.play.remote(0), timeout=700)
    assert reward >= 1.0 and mask[-1] == 1
    spaces = {one["name"]: one["namespace"] for one in ray.util.list_named_actors(all_namespaces=True)}
    assert {"cuda-agent: builder 0", HOST} <= spaces.keys()
    space = spaces[HOST]
    changed = {**good.files, "kernels/axpby.cpp": good.files["kernels/axpby.cpp"] + "\n// another\n"}
    other = actor(run, written(Candidate(files=changed)))
    playing = other.play.remote(1)
    while not ray.wait([playing], timeout=1.0)[0]:
        # A host that died is made anew by the next request; one that dies at work loses the episode.
        with suppress(ValueError):
            ray.kill(ray.get_actor(HOST, namespace=space))
    lost = ray.get(playing, timeout=700)
    assert sum(lost[0]) == 0 and lost[1] == 0.0
    mask, reward = ray.get(other.play.remote(2), timeout=700)
    assert reward >= 1.0 and mask[-1] == 1
    assert [(one.seed, one.reward is None) for one in episodes(run)] == [(0, False), (1, True), (2, False)]
