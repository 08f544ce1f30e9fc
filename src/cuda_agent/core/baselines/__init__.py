"""The baselines of a candidate. A *form* is a way to run the task, one file of this folder each (`FORM`). A *baseline*
is a form at PyTorch's default flags or at a precision policy.

Adding a form takes one file here. The judge times it, reports show its label, and the gate accepts its name.
"""

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
    """A way to run the task. `label` is its name for people. It is timed at the precision policy. With `at_defaults` it
    is also timed at PyTorch's default flags, where they differ from the policy."""

    name: str
    label: str
    #: Keyword arguments of `torch.compile`; None is eager. A function as `backend` can be any compiler.
    compile: Mapping[str, Any] | None
    at_defaults: bool = False
    #: Whether a call on a GPU replays a captured graph.
    captured: bool = False
    #: The form whose compiled code that graph replays, if it is another form.
    replays: str | None = None
    #: Whether the weights are constants. The form is then timed only beside a candidate that derives its weights.
    frozen: bool = False
    #: Whether it is timed only if the options ask for it.
    on_request: bool = False
    devices: tuple[Device, ...] = tuple(Device)


@functools.cache
def forms() -> Mapping[str, Form]:
    """Returns all forms by name, in the order of their preparation: eager first, then those that every verdict
    needs."""
    found: list[Form] = [
        importlib.import_module(f"{__name__}.{module.name}").FORM for module in pkgutil.iter_modules(__path__)
    ]
    found.sort(key=lambda form: (form.compile is not None, form.frozen, form.on_request, form.captured, form.name))
    return {form.name: form for form in found}


class Baseline(Record):
    """A form of the task at a precision; None is PyTorch's default flags. Records have its `name`."""

    form: str
    precision: Precision | None = None

    @staticmethod
    @functools.cache
    def parse(name: str) -> "Baseline":
        """Returns the baseline of a name in a record. An unknown form keeps its name."""
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
        label = form.label if form else self.form
        at = self.precision or ("float32" if form and form.compile is not None and form.at_defaults else None)
        return f"{label} ({at})" if at else label

    @property
    def frozen(self) -> bool:
        """Whether the weights are constants."""
        return self.form in forms() and forms()[self.form].frozen


EAGER = Baseline(form="eager").name
COMPILE = Baseline(form="compile").name
#: The fastest baseline at the precision policy.
MATCHED = "matched"
#: The baselines of tables and metrics.
BASELINES = (EAGER, COMPILE, MATCHED)
