"""Episodes as token ids, and the protocol of environments that play them.

Training uses the ids exactly as they were sampled. Nothing is tokenised again.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol, Self

from pydantic import Field, model_validator

from cuda_agent.agent.trained.sampler import Sampled
from cuda_agent.core.enums import Milestone
from cuda_agent.core.errors import DeviceError, TaskError, WorkerError
from cuda_agent.core.lines import read_lines
from cuda_agent.core.record import StoredRecord
from cuda_agent.core.records import Task
from cuda_agent.training.config import Fault

#: file of a stage's episodes.
EPISODES_FILE = "episodes.jsonl"
RewardKind = Literal["milestone", "speedup"]
FAILED = -1.0


class Episode(StoredRecord):
    """One policy on one task, from the first prompt to its end.

    `response_ids` holds the policy's own tokens (`mask` 1) and the observations between them (`mask` 0), in order. It
    ends with an own token, since a reward on a masked token would be lost. `log_probabilities` are those of the own
    tokens under the policy that sampled them, at temperature 1, and 0.0 for observations. `prompt_ids` + `response_ids`
    is the context of the policy. The context of a turn is a prefix of the context of the next.

    `reward` is None only if the judge failed. Such an episode is not trained on.
    """

    task_key: str
    task_name: str
    prompt_ids: tuple[int, ...] = Field(min_length=1)
    response_ids: tuple[int, ...] = Field(min_length=1)
    mask: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    reward: float | None
    milestone: Milestone | None
    #: a limit of turns or of length ended the episode, not the policy's Finish.
    truncated: bool
    turns: int = Field(ge=1)
    calls: int = 0
    #: calls that can't be run, and turns without a call.
    invalid_calls: int = 0
    #: calls that were made before with the same candidate.
    repeated_calls: int = 0
    #: both by kind.
    faults: dict[Fault, int] = Field(default_factory=dict)
    #: well-formed calls whose tool refused or failed (also by a compile error).
    tool_errors: int = 0
    #: rules that any candidate of the episode broke, by the judge.
    violations: tuple[str, ...] = ()
    #: verdicts that the episode requested (builds don't count), and how many of them the memo knew.
    evaluations: int = 0
    memoised: int = 0
    #: time of the best candidate that passed, and the matched baseline's time / this time.
    best_us: float | None = None
    ratio: float | None = None
    #: (microseconds, that ratio) of every timed verdict in order; None if the candidate did not pass.
    judged: tuple[tuple[float | None, float | None], ...] = ()
    #: training step of the policy, and the seed of its sampling.
    policy_version: int = 0
    seed: int = 0
    #: time of sampling; a batch's time is divided evenly among its episodes.
    generate_s: float = 0.0
    judge_s: float = 0.0
    wall_s: float = 0.0

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        if not len(self.response_ids) == len(self.mask) == len(self.log_probabilities):
            raise ValueError("response_ids, mask and log_probabilities have one entry a token")
        if any(value not in (0, 1) for value in self.mask) or self.mask[-1] != 1:
            raise ValueError("the mask is 0 or 1 and ends with an own token")
        if any(value and not own for value, own in zip(self.log_probabilities, self.mask, strict=True)):
            raise ValueError("an observation has no log-probability")
        if (self.reward is None) != (self.milestone is None):
            raise ValueError("a reward comes with its milestone")
        return self

    @property
    def input_ids(self) -> tuple[int, ...]:
        """All tokens, the prompt first."""
        return self.prompt_ids + self.response_ids

    @property
    def own_tokens(self) -> int:
        return sum(self.mask)

    def cut(self, tokens: int) -> "Episode":
        """Returns the episode with at most so many response tokens. It ends with an own token again, since the reward
        lies there."""
        if len(self.response_ids) <= tokens:
            return self
        end = max(place + 1 for place in range(tokens) if self.mask[place])
        rows = {name: getattr(self, name)[:end] for name in ("response_ids", "mask", "log_probabilities")}
        return self.model_copy(update={**rows, "truncated": True})


def reward_of(episode: Episode, kind: RewardKind) -> float | None:
    """Returns the reward, None if the judge failed. `milestone` is that of the judge's evaluation. `speedup` is the
    matched baseline's time / the best candidate's, or -1 without a candidate (paper, "Reward")."""
    if episode.reward is None or kind == "milestone":
        return episode.reward
    return FAILED if episode.ratio is None or episode.reward <= FAILED else episode.ratio


def rewarded(episodes: Sequence[Episode], kind: RewardKind) -> tuple[list[Episode], list[float]]:
    """Returns the episodes that have a reward, and the rewards."""
    pairs = [(episode, reward) for episode in episodes if (reward := reward_of(episode, kind)) is not None]
    return [episode for episode, _ in pairs], [reward for _, reward in pairs]


#: contexts (token ids, of any lengths) -> what the policy adds to each, in the same order. The key-value cache may be
#: kept between calls: the context of an episode begins with the one before and what was added to it.
Generate = Callable[[Sequence[Sequence[int]]], list[Sampled]]


class Playing(Protocol):
    """An episode that is being played (`environment.rollout.Rollout`)."""

    ended: bool
    room: int
    context: Sequence[int]

    def open(self) -> None: ...
    def take(self, sampled: Sampled) -> None: ...
    def act(self) -> None: ...
    def settle(self) -> None: ...
    def fail(self) -> None: ...
    def close(self) -> None: ...
    def episode(self, *, policy_version: int, seed: int) -> Episode: ...


def act(playing: Playing) -> None:
    """Runs the tools of a turn. A task that can't be judged, or a judge's worker that died, costs one episode. A full
    disk ends the stage."""
    try:
        playing.act()
        if playing.ended:
            playing.settle()
    except (TaskError, WorkerError, DeviceError):
        playing.fail()


class Environment(Protocol):
    """Plays tasks and returns episodes, alike for sampling, training and evaluation."""

    def play(self, tasks: Sequence[Task], generate: Generate, *, seed: int, policy_version: int = 0) -> list[Episode]:
        """Plays one episode for each entry of `tasks`, in that order; a task may occur several times. Episodes run in
        lockstep: the policy generates for all, then the tools of all run, so generation and timing never overlap.
        Raises CudaAgentError when this machine fails."""
        ...


def read_episodes(path: Path) -> list[Episode]:
    """Returns the episodes of a file, none if it doesn't exist. Raises StoreError."""
    return read_lines(path, Episode, optional=True)
