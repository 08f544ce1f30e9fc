"""cuda-agent replay"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.agent.replay import replay
from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import ProgressView, emit, show
from cuda_agent.cli.support.settings import with_settings
from cuda_agent.core.config import JudgeOptions
from cuda_agent.core.enums import Verdict
from cuda_agent.core.errors import EXIT_NOT_PASSED, EXIT_OK
from cuda_agent.core.settings import Settings
from cuda_agent.report.tables.replay import replay_view


@with_settings(JudgeOptions, only=("timing_budget_s",), defaults=False, file=False)
def command(
    settings: Settings,
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory that optimize left.")],
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Judge every candidate of a recorded run again, and set the times beside the recorded ones. Needs no key.

    Exit code 9 where one that had passed no longer does."""
    budget_s = settings.over({"device": "cpu"}).parse(JudgeOptions).timing_budget_s if settings.values else None
    rows = []
    with ProgressView(directory.name) as view:
        for row in replay(directory, progress=view, timing_budget_s=budget_s):
            rows.append(row)
            view("final", f"turn {row.turn}: {row.evaluation.verdict.value}")
    if as_json:
        emit(json.dumps({"schema_version": 1, "candidates": [row.model_dump(mode="json") for row in rows]}))
    else:
        show(replay_view(rows))
    lost = [
        row
        for row in rows
        if row.recorded_verdict == Verdict.PASSED.value and row.evaluation.verdict is not Verdict.PASSED
    ]
    return EXIT_NOT_PASSED if lost else EXIT_OK
