"""The table of lowerings of ATen operators."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from cuda_agent.playbook.lower import Lowering

#: operator -> its lowering; the names are those of `lower.operator_name`. Every module here has a part of it.
TABLE: dict[str, Lowering] = {}
for _module in iter_modules(__path__):
    TABLE |= import_module(f"{__name__}.{_module.name}").TABLE
