"""A policy that plays a checkpoint trained by this project. It needs transformers and no training engine."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from cuda_agent.agent.dialogues.dialogue import TaskDialogue
from cuda_agent.agent.policies import stall
from cuda_agent.agent.policy import FINISH, Brief, finish
from cuda_agent.agent.trained.checkpoint import load_dialogue, load_settings, make_sampler
from cuda_agent.agent.trained.offers import Offer, laying_out, offers
from cuda_agent.agent.trained.sampler import load_model, torch_device
from cuda_agent.core.config import Limits
from cuda_agent.core.errors import NotCovered, TaskError
from cuda_agent.core.records import PolicyMove, ToolCall, Turn


class CheckpointPolicy:
    """Plays a checkpoint in episodes, as in its training. An episode goes from the prompt to Finish or the limit of
    turns. The next one starts from the prompt with another seed, until `episodes` are played or the run's limits end
    it. The best candidate of all episodes counts.

    Every move is a function of the checkpoint and the turns before, so a resumed run continues as it would have.
    """

    name = "checkpoint"

    def __init__(self, brief: Brief, checkpoint: Path, *, episodes: int = 8) -> None:
        """Raises UsageError and StoreError as `load_dialogue` and `load_model` do."""
        self._brief, self._episodes = brief, episodes
        self._settings = load_settings(checkpoint)
        self._dialogue = load_dialogue(checkpoint, self._settings)
        model = _model(checkpoint.resolve(), torch_device(brief.device))
        # It keeps what it read, so a turn reads only the new tokens.
        self._sampler = make_sampler(model, self._dialogue, self._settings, seed=0)
        self._tools = frozenset(tool["function"]["name"] for tool in brief.tools)

    def next(self, history: Sequence[Turn]) -> PolicyMove:
        """Raises PolicyStalled when the model no longer acts."""
        stall.check(history, self._tools)
        try:
            plans, texts = self._plans, self._texts
        except NotCovered as gap:
            return finish(gap.cause, "not_covered")
        except TaskError as error:
            return finish(f"the reference can't be captured as a graph: {error}", "not_covered")
        opening = tuple(
            ToolCall(id=f"plans-{number}", tool="Bash", arguments={"command": command})
            for number, command in enumerate(laying_out(plans), 1)
        )
        if opening and not history:
            return PolicyMove(message=f"Laying out {len(plans)} plans of the playbook.", calls=opening)
        played = self._split(history[1:] if opening else history)
        if len(played) > self._episodes:
            passed = any(result.data.get("verdict") == "passed" for turn in history for result in turn.results)
            return finish(f"{self._episodes} episodes played", "finished" if passed else "gave_up")
        return self._move(texts, played[-1], len(played), len(history))

    @cached_property
    def _plans(self) -> tuple[Offer, ...]:
        brief = self._brief
        if not self._dialogue.offers_plans:
            return ()
        return offers(brief.graph(), brief.device, brief.precision, brief.task.key)

    @cached_property
    def _texts(self) -> TaskDialogue:
        return self._dialogue.about(replace(self._brief, limits=Limits(turns=self._settings.turns)), self._plans)

    def _move(self, texts: TaskDialogue, episode: Sequence[Turn], number: int, index: int) -> PolicyMove:
        context = self._context(texts, episode)
        seed = 1_000 * number + len(episode)
        (sampled,) = self._sampler.seeded(seed)([context])
        parsed = texts.parse(self._dialogue.decode_turn(sampled.token_ids), index)
        # The model's Finish ends an episode. The run ends when all episodes are played.
        calls = tuple(call for call in parsed.calls if call.tool != FINISH or call.malformed)
        ends = len(calls) < len(parsed.calls)
        said = "Done with this episode." if ends else texts.observation((), (), self._settings.turns - len(episode) - 1)
        return PolicyMove(
            message=parsed.text,
            calls=calls,
            observation="" if calls else said,
            tokens_in=len(context),
            tokens_out=len(sampled.token_ids),
            token_ids=sampled.token_ids,
            log_probabilities=sampled.log_probabilities,
        )

    def _split(self, turns: Sequence[Turn]) -> list[list[Turn]]:
        """Returns the turns by episode. The last episode is the current one; it is empty where a new one begins."""
        found: list[list[Turn]] = [[]]
        for turn in turns:
            found[-1].append(turn)
            parsed = self._texts.parse(self._dialogue.decode_turn(turn.token_ids or ()), turn.index)
            finished = any(call.tool == FINISH and not call.malformed for call in parsed.calls)
            if finished or len(found[-1]) >= self._settings.turns:
                found.append([])
        return found

    def _context(self, texts: TaskDialogue, episode: Sequence[Turn]) -> list[int]:
        """Returns the tokens of the episode so far, exactly as they were sampled."""
        context = self._dialogue.encode_prompt(texts.messages())
        for number, turn in enumerate(episode, 1):
            said = texts.observation(turn.calls, turn.results, self._settings.turns - number)
            context += turn.token_ids or ()
            context += self._dialogue.encode_observation(said)
        return context


@lru_cache(maxsize=1)
def _model(checkpoint: Path, device: str) -> Any:
    """Loads the model once; several agents of one process share it."""
    return load_model(checkpoint, device)
