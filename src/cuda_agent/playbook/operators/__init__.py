"""The table of lowerings of ATen operators."""

from __future__ import annotations

from cuda_agent.playbook.lower import Lowering
from cuda_agent.playbook.operators import (
    elementwise,
    formulas,
    interpolation,
    losses,
    norms,
    patches,
    polynomials,
    reductions,
    scans,
    searches,
    views,
    windows,
)

#: operator -> its lowering; the names are those of `lower.operator_name`.
TABLE: dict[str, Lowering] = {
    **elementwise.TABLE,
    **formulas.TABLE,
    **views.TABLE,
    **reductions.TABLE,
    **norms.TABLE,
    **losses.TABLE,
    **windows.TABLE,
    **patches.TABLE,
    **interpolation.TABLE,
    **scans.TABLE,
    **searches.TABLE,
    **polynomials.TABLE,
}
