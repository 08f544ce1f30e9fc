"""cuda-agent compare"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.bench.compare import compare
from cuda_agent.cli.support.options import DebugArg, JsonArg
from cuda_agent.cli.support.output import emit, say, show
from cuda_agent.core.comparison import Comparison
from cuda_agent.core.errors import EXIT_OK, UsageError
from cuda_agent.report.tables.comparison import comparison_view


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN…", help="Folders that bench left; the first is A.")],
    anyway: Annotated[bool, typer.Option("--anyway", help="Also where the stacks differ.")] = False,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Benchmark runs side by side, task by task: which differences are more than noise."""
    comparison = compare(runs)
    if not comparison.same_stack and not anyway:
        raise UsageError(f"The runs were made on different stacks: {_stacks(comparison)}", "Add --anyway to see them")
    for side in comparison.sides[1:]:
        for said in (*side.stack_differences, *side.option_differences, *side.notes):
            say(f"{side.directory}: {said}")
    if as_json:
        emit(comparison.to_json())
    else:
        show(comparison_view(comparison))
    return EXIT_OK


def _stacks(comparison: Comparison) -> str:
    return "; ".join(f"{side.directory}: {said}" for side in comparison.sides for said in side.stack_differences)
