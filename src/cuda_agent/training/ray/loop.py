"""Our agent loop inside verl's workers. The sandbox lives as long as the episode, so the loop runs the tools; verl
would make its tools anew for every call."""

import asyncio
import atexit
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from cuda_agent.agent.trained.sampler import Sampled
from cuda_agent.core.errors import UsageError
from cuda_agent.core.lines import append
from cuda_agent.training.config import EpisodeLimits, TrainingOptions
from cuda_agent.training.episodes import Episode, Playing, act, reward_of
from cuda_agent.training.stages.stage import Domain, OpenDomain

_lock = threading.Lock()
_opened: dict[tuple[str, str], tuple[OpenDomain, Any]] = {}


class EpisodeLoop(AgentLoopBase):  # type: ignore[misc]
    """Plays one episode per call and returns its token ids, mask, log-probabilities and reward. Every episode is on
    disk before verl receives it."""

    def __init__(
        self,
        *rest: Any,
        run: str,
        stage: str,
        domain: str,
        checkpoint: str,
        limits: dict[str, Any],
        **named: Any,
    ) -> None:
        """The named arguments are those that `launch` writes to `loop.yaml`."""
        # The episode brings its own ids, so verl needs no builder of chat tokens for a family of models.
        super().__init__(*rest, **{**named, "hf_model_type": None})
        self._run, self._stage, self._domain = Path(run), stage, domain
        self._checkpoint, self._limits = Path(checkpoint), EpisodeLimits.parse(dict(limits))

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Plays a row of the task file; its `extra_info` names the task."""
        opened, options = await asyncio.to_thread(self._open)
        key = row["extra_info"]["task_key"]
        task = next(task for task in opened.tasks if task.key == key)
        playing: Playing = opened.environment.rollout(task)  # type: ignore[attr-defined]
        version = 0
        try:
            await asyncio.to_thread(playing.open)
            request, end = uuid4().hex, self._end(len(playing.context))
            while not playing.ended:
                room = min(opened.turn_tokens, playing.room, end - len(playing.context))
                if room <= 0:
                    # An empty turn ends the episode.
                    playing.take(Sampled((), ()))
                    await asyncio.to_thread(act, playing)
                    break
                out = await self.server_manager.generate(
                    request, prompt_ids=list(playing.context), sampling_params={**sampling_params, "max_tokens": room}
                )
                version = int(out.extra_fields.get("global_steps") or 0)
                numbers = out.log_probs or [0.0] * len(out.token_ids)
                playing.take(Sampled(tuple(out.token_ids[:room]), tuple(numbers[:room])))
                await asyncio.to_thread(act, playing)
            episode = playing.episode(policy_version=version + 1, seed=int(row["extra_info"]["index"]))
        finally:
            await asyncio.to_thread(playing.close)
        await asyncio.to_thread(append, self._file(), [episode])
        return self._output(episode, reward_of(episode, options.reward))

    def _end(self, prompt: int) -> int:
        """Returns the length at which a context with this prompt is full. Raises UsageError if the prompt is too long
        for verl's batches."""
        most = int(self.rollout_config.prompt_length)
        if prompt > most:
            raise UsageError(f"A prompt has {prompt} tokens, but model.prompt_tokens is {most}", "Raise it")
        return prompt + int(self.rollout_config.response_length)

    def _output(self, episode: Episode, reward: float | None) -> AgentLoopOutput:
        # verl pays the last token.
        episode = episode.cut(int(self.rollout_config.response_length))
        # verl can't leave an episode out. One with all tokens masked has no effect.
        mask = list(episode.mask) if reward is not None else [0] * len(episode.mask)
        return AgentLoopOutput(
            prompt_ids=list(episode.prompt_ids),
            response_ids=list(episode.response_ids),
            response_mask=mask,
            response_logprobs=list(episode.log_probabilities),
            reward_score=reward if reward is not None else 0.0,
            num_turns=2 * episode.turns,
            metrics=AgentLoopMetrics(generate_sequences=episode.generate_s, tool_calls=episode.judge_s),
            extra_fields={
                "reward_extra_info": {"task": episode.task_name},
                "turn_scores": [],
                "tool_rewards": [],
                "global_steps": episode.policy_version - 1,
                "min_global_steps": episode.policy_version - 1,
                "max_global_steps": episode.policy_version - 1,
            },
        )

    def _file(self) -> Path:
        """Returns the file of this process, so that lines of several never mix."""
        return self._run / self._stage / "episodes" / f"{os.uname().nodename}-{os.getpid()}.jsonl"

    def _open(self) -> tuple[OpenDomain, Any]:
        """Opens the domain once per process, for all its episodes."""
        key = (str(self._run), self._stage)
        with _lock:
            if key not in _opened:
                import json

                options = TrainingOptions.parse(json.loads((self._run / "config.json").read_text()))
                # Each process has its own memo.
                own = self._run / "workers" / f"{os.uname().nodename}-{os.getpid()}"
                alone = options.model_copy(update={"environment": {**options.environment, "memo": None}})
                domain: Domain = resolve_name(self._domain)(alone, own).in_cluster()
                stack = ExitStack()
                opened = stack.enter_context(domain.open(self._checkpoint, self._limits))
                atexit.register(stack.close)
                _opened[key] = (opened, options)
            return _opened[key]
