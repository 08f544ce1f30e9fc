"""A model behind an endpoint that plays a dialogue without tools.

An attempt has few turns. The next one begins from the prompt again; the best candidate of all attempts counts.
"""

from collections.abc import Sequence
from functools import cached_property

from cuda_agent.agent.dialogues.dialogue import TaskDialogue
from cuda_agent.agent.dialogues.kinds import task_dialogue
from cuda_agent.agent.policies import stall
from cuda_agent.agent.policy import Brief, finish
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import NotCovered, PolicyError, TaskError, UsageError
from cuda_agent.core.records import PolicyMove, Turn
from cuda_agent.llm.chat import ChatClient, ChatRequest, ContextExceeded, Message
from cuda_agent.llm.client import make_client
from cuda_agent.llm.prices import spent

#: turns of an attempt, and attempts of a run.
TURNS, ATTEMPTS = 4, 8


class AttemptsPolicy:
    """Plays attempts with an endpoint. Every move is a function of the turns before."""

    name = "llm"

    def __init__(self, brief: Brief, client: ChatClient | None = None) -> None:
        """Raises UsageError if the brief names no model or the client's package is missing."""
        if brief.llm is None:
            raise UsageError("The policy llm needs a model", "Give --model, and --base-url where it isn't OpenAI's")
        self._brief, self._options = brief, brief.llm
        self._tools = frozenset(tool["function"]["name"] for tool in brief.tools)
        self._client = client or make_client(brief.llm, brief.key, brief.notice)

    @cached_property
    def _dialogue(self) -> TaskDialogue:
        return task_dialogue(self._options.dialogue, self._brief)

    def next(self, history: Sequence[Turn]) -> PolicyMove:
        """Raises PolicyStalled when the model no longer acts, PolicyError when the endpoint ends the conversation."""
        stall.check(history, self._tools)
        try:
            dialogue = self._dialogue
        except NotCovered as gap:
            return finish(gap.cause, "not_covered")
        except TaskError as error:
            return finish(f"the reference can't be captured as a graph: {error}", "not_covered")
        if len(history) >= TURNS * ATTEMPTS:
            passed = any(result.data.get("verdict") == Verdict.PASSED for turn in history for result in turn.results)
            return finish(f"{ATTEMPTS} attempts of {TURNS} turns", "finished" if passed else "gave_up")
        attempt = history[len(history) // TURNS * TURNS :]
        try:
            reply = self._client.complete(ChatRequest(self._messages(attempt), None))
        except ContextExceeded as error:
            remedy = "Use a model or server with a longer context"
            raise PolicyError(f"The model's context is too small for this task ({error})", remedy) from None
        calls = dialogue.parse(reply.text, len(history) + 1).calls
        return PolicyMove(
            message=reply.text,
            reasoning=reply.reasoning if self._options.reasoning == "keep" else "",
            calls=calls,
            observation="" if calls else dialogue.observation((), (), 0),
            **spent(reply, self._options),
        )

    def _messages(self, attempt: Sequence[Turn]) -> list[Message]:
        messages = self._dialogue.messages()
        for number, turn in enumerate(attempt, 1):
            observation = self._dialogue.observation(turn.calls, turn.results, TURNS - number)
            messages.append({"role": "assistant", "content": turn.message or "(no answer)"})
            messages.append({"role": "user", "content": observation})
        return messages
