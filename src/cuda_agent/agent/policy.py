"""The protocol of policies. A policy chooses the next action: the playbook, a language model, a trained checkpoint."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cuda_agent.agent.winners import Winners
from cuda_agent.core.config import LanguageModelOptions, Limits
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import StoreError
from cuda_agent.core.graph import Graph
from cuda_agent.core.records import Candidate, PolicyMove, Task, ToolCall, Turn
from cuda_agent.llm.keys import Key

#: the tool that ends a run.
FINISH = "Finish"


class Policy(Protocol):
    """Chooses moves. Raises PolicyError when it can't continue."""

    @property
    def name(self) -> str: ...

    def next(self, history: Sequence[Turn]) -> PolicyMove:
        """Returns the next move, given every turn so far with the tools' results."""
        ...


def _no_candidate(digest: str) -> Candidate:
    raise StoreError(f"No candidate {digest[:12]} was kept")


@dataclass(frozen=True)
class Brief:
    """What a policy receives at the start. `graph()` captures the reference, which takes seconds. The remaining budget
    is in `history[-1].budget` later."""

    task: Task
    device: Device
    precision: Precision
    limits: Limits
    tools: list[dict[str, Any]]
    graph: Callable[[], Graph]
    #: the name of the run directory, which tells apart tasks of one benchmark.
    id: str = ""
    #: candidate(digest) returns a candidate that this run had. Raises StoreError.
    candidate: Callable[[str], Candidate] = _no_candidate
    #: notice(text) shows one line to the user.
    notice: Callable[[str], None] = lambda text: None
    llm: LanguageModelOptions | None = None
    key: Key | None = None
    winners: Winners | None = None


def finish(message: str, outcome: str) -> PolicyMove:
    """Returns the move that ends a run."""
    return PolicyMove(
        message="", calls=(ToolCall(id="finish", tool=FINISH, arguments={"message": message, "outcome": outcome}),)
    )


#: `optimize` accepts it in place of a name.
PolicyMaker = Callable[[Brief], Policy]
