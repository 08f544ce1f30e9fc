"""The loop with a scripted policy, on a real workspace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cuda_agent.agent.budget import Accounts
from cuda_agent.agent.loop import Ending, RunOutcome, run
from cuda_agent.agent.storage.journal import RunJournal
from cuda_agent.agent.storage.transcript import FILE_NAME, append_turn, read_transcript
from cuda_agent.core.config import Limits
from cuda_agent.core.errors import PolicyError, StoreError
from cuda_agent.core.records import PolicyMove, ToolCall, Turn
from unit.agent.agent_workspace import Calls


class Scripted:
    """Plays moves; an exception in the list is raised in its turn."""

    name = "scripted"

    def __init__(self, moves: list[PolicyMove | BaseException], transcript_path: Path | None = None) -> None:
        self.moves = moves
        self.path = transcript_path
        self.seen_on_disk: list[int] = []

    def next(self, history: Sequence[Turn]) -> PolicyMove:
        if self.path is not None:
            self.seen_on_disk.append(len(self.path.read_text().splitlines()) if self.path.exists() else 0)
        move = self.moves[len(history)]
        if isinstance(move, BaseException):
            raise move
        return move


def move(tool: str, **arguments: object) -> PolicyMove:
    return PolicyMove(message=f"calls {tool}", calls=(ToolCall(id="1", tool=tool, arguments=arguments),))


def silent(phase: str, text: str) -> None:
    pass


def play(
    moves: Scripted | list[PolicyMove | BaseException], calls: Calls, folder: Path, turns: int = 10, **limits: float
) -> Ending:
    journal = RunJournal(folder, calls.box, Accounts(Limits.parse({"turns": turns, **limits})))
    return run(moves if isinstance(moves, Scripted) else Scripted(moves), calls.box, journal, silent)


def test_turns_are_on_disk_before_the_next_begins(calls: Calls, run_directory: Path) -> None:
    moves: list[PolicyMove | BaseException] = [
        move("Read", path="model.py"),
        move("Write", path="kernels/a.cu", content="int a;"),
        move("Finish", message="done"),
    ]
    policy = Scripted(moves, run_directory / FILE_NAME)
    ending = play(policy, calls, run_directory)
    assert (ending.outcome, ending.message) == (RunOutcome.FINISHED, "done")
    assert policy.seen_on_disk == [0, 1, 2]
    turns = read_transcript(run_directory)
    assert [turn.index for turn in turns] == [0, 1, 2]
    assert turns[1].results[0].ok
    assert turns[0].candidate_digest != turns[1].candidate_digest


def test_a_wrong_call_does_not_end_the_run(calls: Calls, run_directory: Path) -> None:
    moves: list[PolicyMove | BaseException] = [move("Nothing"), move("Finish", message="x", outcome="gave_up")]
    ending = play(moves, calls, run_directory)
    assert ending.outcome is RunOutcome.GAVE_UP


def test_the_limit_of_turns(calls: Calls, run_directory: Path) -> None:
    moves: list[PolicyMove | BaseException] = [move("Glob")] * 5
    assert play(moves, calls, run_directory, turns=3).outcome is RunOutcome.BUDGET
    assert len(read_transcript(run_directory)) == 3


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(KeyboardInterrupt(), RunOutcome.INTERRUPTED), (PolicyError("no answer"), RunOutcome.POLICY_ERROR)],
)
def test_interrupt_and_policy_error(
    calls: Calls, run_directory: Path, error: BaseException, outcome: RunOutcome
) -> None:
    assert play([move("Glob"), error], calls, run_directory).outcome is outcome
    assert len(read_transcript(run_directory)) == 1


def test_a_link_as_candidate_is_refused_not_fatal(calls: Calls, run_directory: Path) -> None:
    moves: list[PolicyMove | BaseException] = [
        move("Bash", command="ln -s /etc/passwd model_new.py"),
        move("Compile"),
        move("Finish", message="x"),
    ]
    play(moves, calls, run_directory)
    turns = read_transcript(run_directory)
    assert not turns[1].results[0].ok
    assert "not a plain" in turns[1].results[0].text


def test_half_a_line_is_dropped_and_a_broken_line_is_named(run_directory: Path) -> None:
    append_turn(run_directory, Turn(index=0, message="a"))
    with (run_directory / FILE_NAME).open("a") as stream:
        stream.write('{"index": 1, "mess')
    assert len(read_transcript(run_directory)) == 1
    (run_directory / FILE_NAME).write_text(json.dumps({"no": "turn"}) + "\n")
    with pytest.raises(StoreError, match="line 1: index"):
        read_transcript(run_directory)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"tokens": 250}, "all 250 tokens are spent (300)"),
        ({"cost": 0.5}, "the cost of 0.5 is spent (0.6)"),
        ({"wall_s": 1e-6}, "minutes are spent"),
        ({"judge_s": 1.0}, "minutes of the judge are spent"),
    ],
)
def test_a_spent_limit_ends_the_run(calls: Calls, run_directory: Path, limits: dict[str, float], says: str) -> None:
    moves: list[PolicyMove | BaseException] = [
        move("Glob").model_copy(update={"tokens_in": 90, "tokens_out": 10, "cost": 0.2})
    ] * 20
    calls.context.judge_s = 2.0
    ending = play(moves, calls, run_directory, turns=20, **limits)
    assert ending.outcome is RunOutcome.BUDGET
    assert says in ending.message
    turns = read_transcript(run_directory)
    assert len(turns) == {"tokens": 3, "cost": 3}.get(next(iter(limits)), 0)
    if turns:
        assert turns[-1].budget is not None
        assert (turns[-1].budget.tokens, turns[-1].budget.turns_left) == (300, 17)


def test_a_move_that_was_not_played_is_played_first(calls: Calls, run_directory: Path) -> None:
    """The policy isn't asked again for what is on disk, and what the first calls did isn't done twice."""
    both = PolicyMove(
        calls=(
            ToolCall(id="1", tool="Bash", arguments={"command": "echo a >> notes"}),
            ToolCall(id="2", tool="Bash", arguments={"command": "echo b >> notes"}),
        )
    )
    first = RunJournal(run_directory, calls.box, Accounts(Limits()))
    first.begin(both, 0.0)
    first.add(calls.box.call(both.calls[0]))
    # The second one was at work, and so was killed.
    calls.box.call(both.calls[1])

    again = RunJournal(run_directory, calls.box, Accounts(Limits()))
    again.resume()
    finish = move("Finish", message="done")
    policy = Scripted([finish, finish])
    assert run(policy, calls.box, again, silent).outcome is RunOutcome.FINISHED
    assert (calls.context.workspace.directory / "notes").read_text() == "a\nb\n"
    assert [len(turn.results) for turn in read_transcript(run_directory)] == [2, 1]


def test_what_a_move_holds_is_what_a_turn_holds() -> None:
    assert set(PolicyMove.model_fields) <= set(Turn.model_fields)
