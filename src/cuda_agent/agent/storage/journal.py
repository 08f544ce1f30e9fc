"""What a run needs on disk to be resumed: the turns, and a checkpoint before and after every tool.

A move is in the checkpoint before its first tool runs, so no model answer is requested twice. A tool that was killed is
run again in the workspace as it was before.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from cuda_agent.agent.budget import Accounts
from cuda_agent.agent.context import ToolContext
from cuda_agent.agent.storage.snapshot import FileEntry, Snapshots, objects
from cuda_agent.agent.storage.store import ContentStore
from cuda_agent.agent.storage.transcript import append_turn
from cuda_agent.agent.tools.registry import Toolbox
from cuda_agent.core.errors import StoreError, UsageError
from cuda_agent.core.record import StoredRecord
from cuda_agent.core.records import Budget, PolicyMove, ToolResult, Turn
from cuda_agent.workspace.layout import is_writable


class Checkpoint(StoredRecord):
    """A run between two tools. Turn `index` plays `move`, whose first calls gave `results`. `tree` is the workspace.
    `known`, `calls` and `commands` are the state of the tools; `best` and `passes` that of the best candidate."""

    file_name = "checkpoint.json"
    index: int = 0
    move: PolicyMove | None = None
    results: tuple[ToolResult, ...] = ()
    candidate_digest: str | None = None
    finished: tuple[str, str] | None = None
    tree: dict[str, FileEntry]
    known: dict[str, str]
    calls: int
    commands: int
    best: int
    passes: int
    turn_s: float = 0.0
    budget: Budget


class RunJournal:
    """The journal of one run. `turns` are complete; `pending` is the move that isn't."""

    def __init__(self, directory: Path, tools: Toolbox, accounts: Accounts, turns: Sequence[Turn] = ()) -> None:
        """Raises StoreError."""
        self._directory, self._tools, self.accounts = directory, tools, accounts
        self.turns = list(turns)
        self._store = ContentStore(directory)
        workspace = tools.context.workspace
        fixed = [path.relative_to(workspace.directory).as_posix() for path in workspace.fixed_paths]
        self._snapshots = Snapshots(workspace.directory, self._store, fixed)
        self._last: Checkpoint | None = None
        self._turn_began = time.monotonic()
        self.pending: Checkpoint | None = None

    @property
    def context(self) -> ToolContext:
        return self._tools.context

    def budget(self) -> Budget:
        """Returns the budget at this moment."""
        return self.accounts.budget(self.turns, self.context.device_s)

    def begin(self, move: PolicyMove, took_s: float) -> Checkpoint:
        """Makes a move durable. `took_s` is the time that the policy needed for it. Raises StoreError."""
        self._turn_began = time.monotonic() - took_s
        self.pending = self._write(move, ())
        return self.pending

    def add(self, result: ToolResult) -> Checkpoint:
        """Records the result of the next call of the pending move. Raises StoreError."""
        pending = self.pending
        assert pending is not None and pending.move is not None
        result = result.model_copy(update={"candidate_digest": pending.candidate_digest})
        self.pending = self._write(pending.move, (*pending.results, result))
        return self.pending

    def end(self) -> Turn:
        """Completes the pending move and returns its turn. Raises StoreError."""
        done = self.pending
        assert done is not None and done.move is not None
        turn = Turn(
            index=done.index,
            results=done.results,
            candidate_digest=done.candidate_digest,
            duration_s=time.monotonic() - self._turn_began,
            **dict(done.move),
        )
        budget = self.accounts.budget((*self.turns, turn), self.context.device_s)
        turn = turn.model_copy(update={"budget": budget})
        append_turn(self._directory, turn)
        self.turns.append(turn)
        self.pending = None
        return turn

    def resume(self) -> None:
        """Restores the workspace, the tools and the best candidate from the checkpoint, if there is one. Raises
        StoreError."""
        self.context.judge_s = self.accounts.before.judge_s
        last = Checkpoint.find(self._directory)
        if last is None:
            return
        if last.index not in (len(self.turns), len(self.turns) - 1):
            raise StoreError(f"{self._directory}: checkpoint and transcript don't belong together", "Restore them")
        context = self.context
        self._snapshots.restore(last.tree)
        context.files.remember(last.known)
        context.best.recall(last.best, last.passes)
        context.finished = last.finished
        context.shell.started = last.commands
        self._last = last
        self._turn_began = time.monotonic() - last.turn_s
        made = [call for turn in self.turns for call in turn.calls]
        if last.move is not None and last.index == len(self.turns):
            self.pending = last
            made += last.move.calls[: len(last.results)]
        self._tools.resume(last.calls, made)

    def _write(self, move: PolicyMove, results: tuple[ToolResult, ...]) -> Checkpoint:
        context, before = self.context, self._last
        tree = self._snapshots.take()
        checkpoint = Checkpoint(
            index=len(self.turns),
            move=move,
            results=results,
            candidate_digest=self._candidate(tree),
            finished=context.finished,
            tree=tree,
            known=context.files.known(),
            calls=self._tools.calls,
            commands=context.shell.started,
            best=context.best.number,
            passes=context.best.passes,
            turn_s=time.monotonic() - self._turn_began,
            budget=self.budget(),
        )
        checkpoint.write(self._directory)
        self._last = checkpoint
        if before is not None:
            self._store.drop(objects(before.tree) - objects(tree))
        return checkpoint

    def _candidate(self, tree: dict[str, FileEntry]) -> str | None:
        """Stores the candidate as it stands and returns its digest, or None if the files can't be a candidate (a link,
        a file that is too large)."""
        last = self._last
        if last is not None and last.candidate_digest is not None and _sources(last.tree) == _sources(tree):
            return last.candidate_digest
        try:
            candidate = self.context.workspace.snapshot()
        except UsageError:
            return None
        self._store.keep(candidate)
        return candidate.digest


def _sources(tree: dict[str, FileEntry]) -> dict[str, tuple[str, str | None]]:
    return {path: (entry.kind, entry.content) for path, entry in tree.items() if is_writable(path)}
