"""What a run's ending prints and returns."""

from __future__ import annotations

from collections.abc import Callable

from cuda_agent.agent.run import Unsaved
from cuda_agent.cli.support.output import emit, say, show
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import EXIT_INTERRUPTED, EXIT_NOT_PASSED, EXIT_OK, NotCovered, PolicyError
from cuda_agent.core.records import Trajectory
from cuda_agent.report.tables.trajectory import trajectory_view


def played(play: Callable[[], Trajectory]) -> tuple[Trajectory, int]:
    """The run and its exit code. Where something of it could not be written, that is said, and the code is that of a
    file that can't be written; what was judged is there all the same."""
    try:
        run = play()
    except Unsaved as error:
        if error.trajectory.evaluation is None:
            raise
        say(f"error: {error}")
        return error.trajectory, error.exit_code
    return run, exit_code(run)


def print_run(run: Trajectory, *, as_json: bool) -> None:
    """The JSON document, or the table."""
    if as_json:
        emit(run.to_json())
    else:
        show(trajectory_view(run))


def exit_code(trajectory: Trajectory) -> int:
    """0 when the best candidate passed; else 130, 10, 7 or 9 by how the run ended."""
    if trajectory.outcome == "interrupted":
        return EXIT_INTERRUPTED
    if trajectory.outcome == "policy_error":
        return PolicyError.exit_code
    if trajectory.evaluation is not None and trajectory.evaluation.verdict is Verdict.PASSED:
        return EXIT_OK
    return NotCovered.exit_code if trajectory.outcome == "not_covered" else EXIT_NOT_PASSED
