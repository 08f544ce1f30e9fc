"""Judges every candidate of a recorded run again, without a policy, and gives the times beside the recorded ones."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from cuda_agent.agent.context import Progress
from cuda_agent.agent.device import resolve_device
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.agent.storage.store import ContentStore
from cuda_agent.agent.storage.transcript import read_transcript
from cuda_agent.core.errors import UsageError
from cuda_agent.core.records import Replayed, Turn

_JUDGED = ("Compile", "Verify", "Profile")


def recorded(turns: Sequence[Turn]) -> dict[str, tuple[int, str | None, float | None]]:
    """Returns digest -> (turn, verdict, microseconds) of every candidate that was judged, in order."""
    found: dict[str, tuple[int, str | None, float | None]] = {}
    for turn in turns:
        for call, result in zip(turn.calls, turn.results, strict=False):
            digest = result.candidate_digest
            if call.tool not in _JUDGED or digest is None:
                continue
            first, verdict, time_us = found.get(digest, (turn.index + 1, None, None))
            # A later verification without a profile must not replace the verdict of an earlier profile.
            if call.tool == "Profile" or verdict is None:
                verdict = result.data.get("verdict", verdict)
            now = result.data.get("latency_us")
            found[digest] = (first, verdict, float(now) if isinstance(now, int | float) else time_us)
    return found


def replay(
    directory: str | Path, *, progress: Progress | None = None, timing_budget_s: float | None = None
) -> Iterator[Replayed]:
    """Judges each candidate of a run again, in the order of the run. Writes nothing. Raises UsageError if there is no
    run or none of its candidates was judged, and what `JudgeSession.evaluate` raises."""
    from cuda_agent.judge import JudgeSession

    run = RunDirectory(Path(directory))
    task, options, _ = run.read_start()
    found = recorded(read_transcript(run.path))
    if not found:
        raise UsageError(f"No candidate of {run.path} was judged", "Choose a run that compiled one")
    judge = options.judge
    if timing_budget_s is not None:
        judge = judge.model_copy(update={"timing_budget_s": timing_budget_s})
    resolve_device(judge.device.value)
    store = ContentStore(run.path)
    with JudgeSession(task, judge, progress=progress, hidden=(run.path,)) as session:
        session.admit()
        for digest, (turn, verdict, time_us) in found.items():
            evaluation = session.evaluate(store.candidate(digest))
            yield Replayed(
                turn=turn, digest=digest, recorded_verdict=verdict, recorded_us=time_us, evaluation=evaluation
            )
