"""What a candidate is compared with. A *form* is a way to run the task, one file of this folder each (`FORM`); a
*baseline* is a form at PyTorch's default flags or at a precision policy.

Adding a form takes one file here. The judge times it, reports show its label, and the gate accepts its name.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.record import Record


@dataclass(frozen=True)
class Form:
    """A way to run the task. `label` names it for people. It is timed at the precision policy, and, `at_defaults`, at
    PyTorch's default flags as well, where that isn't the same."""

    name: str
    label: str
    #: keyword arguments of `torch.compile`; None: eager. A function as `backend` takes any compiler.
    compile: Mapping[str, Any] | None
    at_defaults: bool = False
    #: on a GPU a call replays a captured graph.
    captured: bool = False
    #: the form whose compiled code that graph replays, where it is another form's.
    replays: str | None = None
    #: the weights are constants: timed only beside a candidate that derives its weights.
    frozen: bool = False
    #: timed only where the options ask for it.
    on_request: bool = False
    devices: tuple[Device, ...] = tuple(Device)


@functools.cache
def forms() -> Mapping[str, Form]:
    """All forms by name, in the order in which they are prepared: eager first, then what every verdict needs."""
    found: list[Form] = [
        importlib.import_module(f"{__name__}.{module.name}").FORM for module in pkgutil.iter_modules(__path__)
    ]
    found.sort(key=lambda form: (form.compile is not None, form.frozen, form.on_request, form.captured, form.name))
    return {form.name: form for form in found}


class Baseline(Record):
    """A form of the task; `precision` None: at PyTorch's default flags. Records hold its `name`."""

    form: str
    precision: Precision | None = None

    @staticmethod
    @functools.cache
    def parse(name: str) -> Baseline:
        """The baseline of a record. A form that isn't known here any more keeps its name."""
        form, _, precision = name.rpartition("_")
        if form and precision in tuple(Precision):
            return Baseline(form=form, precision=Precision(precision))
        return Baseline(form=name)

    @property
    def name(self) -> str:
        return f"{self.form}_{self.precision}" if self.precision else self.form

    @property
    def label(self) -> str:
        """The name for people."""
        form = forms().get(self.form)
        said = form.label if form else self.form
        at = self.precision or ("float32" if form and form.compile is not None and form.at_defaults else None)
        return f"{said} ({at})" if at else said

    @property
    def frozen(self) -> bool:
        """Whether the weights are constants."""
        return self.form in forms() and forms()[self.form].frozen


EAGER = Baseline(form="eager").name
COMPILE = Baseline(form="compile").name
