"""The table of lowerings of ATen operators: those of `__init__.yaml`, and the formulas."""

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

from cuda_agent.core.assets import tables
from cuda_agent.playbook.lower import Lowering
from cuda_agent.playbook.operators.formulas import FORMULAS


def _of_kind(lowering: Callable[..., Any], kind: str) -> Lowering:
    return lambda b, node: lowering(b, node, kind)


def _table() -> dict[str, Lowering]:
    made = dict(FORMULAS)
    for module, rows in tables(__file__).items():
        for function, names in rows.items():
            lowering = getattr(import_module(f"{__name__}.{module}"), function)
            takes_kind = len(signature(lowering).parameters) > 2
            for name, _, kind in (word.partition(":") for word in names.split()):
                made[name] = _of_kind(lowering, kind or name.removeprefix("special_")) if takes_kind else lowering
    return made


#: operator -> its lowering; the names are those of `lower.operator_name`.
TABLE: dict[str, Lowering] = _table()
