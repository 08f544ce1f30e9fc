"""The table of special values: every element-wise operator with a lowering, on every dtype, against eager."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cuda_agent.core.assets import tables
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import NotCovered
from cuda_agent.core.graph import DtypeArg, Graph, GraphInput, Node, NonFinite, Ref, TensorMeta, ValueKind
from cuda_agent.playbook.operators import __file__ as _OPERATORS
from cuda_agent.playbook.operators import elementwise
from cuda_agent.playbook.operators.formulas import FORMULAS
from playbook_batches import Planned, compiled, planned, results

_DATA = tables(__file__)
#: dtypes of the operands of a call: one for all of them.
DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
_FLOATS: list[float] = [float(text) for text in _DATA["floats"].split()]
_FEW_FLOATS: list[float] = [float(text) for text in _DATA["few_floats"].split()]
_WHOLE: list[int] = [int(text) for text in _DATA["integers"].split()]
#: relative errors that two correct implementations may differ by.
_CLOSE = {torch.float64: 4e-14, torch.float32: 4e-6, torch.bfloat16: 8.0e-3, torch.float16: 1.0e-3}
_METAS = {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"}


@dataclass(frozen=True)
class Call:
    """A call of an overload: `tensors` are its tensors, and `constants` its other arguments by name."""

    op: str
    tensors: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.op} {self.dtype} " + " ".join(f"{name}={value}" for name, value in self.constants)

    @property
    def operator(self) -> str:
        return self.op.split(".")[1]

    @property
    def overload(self) -> Any:
        packet, overload = self.op.split(".")[1:]
        return getattr(getattr(torch.ops.aten, packet), overload)

    def eager(self, inputs: Sequence[Any]) -> Any:
        given = dict(zip(self.tensors, inputs, strict=True))
        return self.overload(**given, **{name: _torch_value(name, value) for name, value in self.constants})


def _torch_value(name: str, value: Any) -> Any:
    return getattr(torch, value) if name == "dtype" else value


def operators() -> list[str]:
    """The element-wise operators with a lowering."""
    rows = tables(_OPERATORS)[elementwise.__name__.rpartition(".")[2]]
    listed = {word.partition(":")[0] for names in rows.values() for word in names.split()}
    return sorted((listed | set(FORMULAS)) - set(_DATA["elsewhere"]))


def calls(name: str, dtypes: Sequence[str]) -> Iterator[Call]:
    """The calls of an operator: all overloads that return new tensors, with the dtypes and the numbers of the data."""
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        schema = getattr(packet, overload)._schema
        if schema.is_mutable or not all(str(r.type) == "Tensor" for r in schema.returns):
            continue
        tensors = tuple(a.name for a in schema.arguments if str(a.type) == "Tensor" and not a.has_default_value())
        if not tensors or set(tensors) & set(_DATA["numbers"]):
            continue
        choices = [_choices(name, a) for a in schema.arguments if a.name not in tensors]
        for values in itertools.product(*choices):
            constants = tuple(pair for pair in values if pair is not None)
            for dtype in dtypes:
                yield Call(f"aten.{name}.{overload}", tensors, constants, dtype)


def _choices(operator: str, argument: Any) -> list[Any]:
    """The values of an argument that is no tensor: those of the data, else its default, which None stands for."""
    listed = _DATA["arguments"].get(f"{operator}.{argument.name}", _DATA["arguments"].get(argument.name))
    if listed is not None:
        return [(argument.name, value) for value in listed]
    if argument.has_default_value():
        return [None]
    kind = str(argument.type)
    values = {"number": [2, -1, 0.5], "float": [0.5, 2.0], "int": [1], "bool": [False, True]}.get(kind, [None])
    return [(argument.name, value) for value in values]


def values_of(dtype: str, few: bool) -> Any:
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.tensor([False, True])
    if kind.is_floating_point:
        info = torch.finfo(kind)
        own = [info.max, -info.max, info.tiny, -info.tiny, info.smallest_normal / 4, -info.smallest_normal / 4]
        found = torch.tensor([*(_FEW_FLOATS if few else _FLOATS), *own], dtype=torch.float64).to(kind)
        # Each once, though 0 and -0 are equal and NaN isn't.
        known = {(str(value), math.copysign(1, value)): at for at, value in enumerate(found.tolist())}
        return found[sorted(known.values())]
    ends = torch.iinfo(kind)
    inside = [value for value in _WHOLE if ends.min <= value <= ends.max]
    return torch.tensor([*inside, ends.max, ends.max - 1, *([ends.min, ends.min + 1] if ends.min else [])], dtype=kind)


def inputs_of(call: Call) -> list[Any]:
    """Operands that meet in every combination of the values."""
    count = len(call.tensors)
    every = values_of(call.dtype, few=count > 1)
    if call.operator in _DATA["within"]:
        low, high = _DATA["within"][call.operator]
        every = every[(every >= low) & (every <= high)]
    if count > 2:
        every = every[:: max(1, len(every) // 11)]
    masks = torch.tensor([False, True])
    choices = [masks if name in _DATA["masks"] else every for name in call.tensors]
    grid = torch.cartesian_prod(*[torch.arange(len(one)) for one in choices]).view(-1, count)
    return [one[grid[:, at]].contiguous() for at, one in enumerate(choices)]


def without_division_by_zero(call: Call, inputs: list[Any]) -> list[Any]:
    """Leaves out integers divided by 0, which raises, and the least one divided by -1, which kills the process."""
    constants = dict(call.constants)
    if inputs[0].is_floating_point() or constants.get("rounding_mode", "floor") is None:
        return inputs
    x, y = constants.get("self", inputs[0]), constants.get("other", inputs[-1])
    x, y = torch.broadcast_tensors(torch.as_tensor(x), torch.as_tensor(y))
    ends = torch.iinfo(inputs[0].dtype).min if inputs[0].dtype is not torch.bool else 0
    kept = (y != 0) & ~((x == ends) & (y == -1))
    return [value[kept].contiguous() for value in inputs]


def graph_of_call(call: Call, inputs: Sequence[Any], result: Any) -> Graph:
    """The graph of one call."""
    names = [f"in{at}" for at in range(len(inputs))]
    given = dict(zip(call.tensors, names, strict=True))
    constants = dict(call.constants)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in call.overload._schema.arguments:
        if argument.name in given:
            value: Any = Ref(ref=given[argument.name])
        elif argument.name in constants:
            value = _plain(argument.name, constants[argument.name])
        elif argument.kwarg_only or argument.name == "dtype":
            continue
        else:
            value = _plain(argument.name, argument.default_value)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    node = Node(name="made", op=call.op, args=tuple(args), kwargs=kwargs, outputs=(_meta(result),))
    made = [
        GraphInput(name=name, kind=ValueKind.INPUT, meta=_meta(value), position=at)
        for at, (name, value) in enumerate(zip(names, inputs, strict=True))
    ]
    return Graph(inputs=tuple(made), nodes=(node,), outputs=("made",))


def _plain(name: str, value: Any) -> Any:
    if name == "dtype" and value is not None:
        return DtypeArg(dtype=value)
    if isinstance(value, float) and not math.isfinite(value):
        return NonFinite(nonfinite="nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
    return value


def _meta(value: Any) -> TensorMeta:
    return TensorMeta(
        shape=tuple(value.shape), dtype=str(value.dtype).removeprefix("torch."), strides=tuple(value.stride())
    )


@dataclass(frozen=True)
class Row:
    """A call that has a kernel, its operands and what eager makes of them."""

    call: Call
    inputs: tuple[Any, ...]
    eager: Any
    exact: Any
    graph: Graph


def rows(names: Sequence[str], device: Device, dtypes: Sequence[str]) -> Iterator[Row]:
    """The calls that eager takes."""
    for name in names:
        for call in calls(name, dtypes):
            inputs = inputs_of(call)
            if name in _DATA["divisions"].split():
                inputs = without_division_by_zero(call, inputs)
            inputs = [value.to(device.value) for value in inputs]
            try:
                result = call.eager(inputs)
            except (RuntimeError, NotImplementedError, TypeError, ValueError):
                continue
            if str(result.dtype).removeprefix("torch.") not in _METAS or not result.numel():
                continue
            exact = result
            if result.is_floating_point():
                exact = call.eager([_wide(one, value) for one, value in zip(call.tensors, inputs, strict=True)])
            yield Row(call, tuple(inputs), result, exact, graph_of_call(call, inputs, result.contiguous()))


def table(device: Device, dtypes: Sequence[str]) -> Iterator[tuple[Row, Any]]:
    """Every call that has a kernel, with what the kernel makes."""
    kept, taken = list[tuple[Row, Planned]](), set[str]()
    for row in rows(operators(), device, dtypes):
        with contextlib.suppress(NotCovered):
            kept.append((row, planned(row.graph, device, taken)))
    launchers = compiled([plan for _, plan in kept], device)
    for row, plan in kept:
        yield row, results(plan, launchers, torch.nn.Module(), list(row.inputs), device)[0]


def _wide(name: str, value: Any) -> Any:
    """An operand in float64, rounded to eager's own type before."""
    if name in _DATA["masks"]:
        return value
    return (value if value.is_floating_point() else value.float()).double()


def differences(row: Row, ours: Any) -> list[str]:
    """What the kernel makes otherwise than eager: the operands and both values."""
    eager, exact = row.eager.contiguous(), row.exact.contiguous()
    bad = _differs(ours, eager, exact, scale=row.call.operator in _DATA["of_scale_one"].split())
    found = []
    for accepted in _accepted(row.call, str(row.eager.device.type)):
        bad &= ~_where(accepted["where"], row.inputs, ours, eager)
    for at in bad.nonzero().flatten().tolist()[:400]:
        given = ", ".join(repr(value[at].item()) if value.dim() else repr(value.item()) for value in row.inputs)
        found.append(f"({given}): {ours.flatten()[at].item()!r}, eager {eager.flatten()[at].item()!r}")
    return found


def _accepted(call: Call, device: str) -> list[dict[str, Any]]:
    """The differences of the data that concern a call."""
    return [
        one
        for one in _DATA["accepted"]
        if call.operator in one["operators"].split() or one["operators"] == "all"
        if call.dtype in one.get("dtypes", call.dtype).split() and one.get("device", device) == device
    ]


def _where(text: str, inputs: Sequence[Any], ours: Any, eager: Any) -> Any:
    """The elements for which an expression of the data holds."""
    names = {"ours": ours, "eager": eager, "inf": math.inf, "zeros": (ours == 0) & (eager == 0)}
    names |= dict.fromkeys("xyz", torch.ones((), device=ours.device))
    names |= {name: value.double() for name, value in zip("xyz", inputs, strict=False)}
    return torch.as_tensor(eval(text, {"__builtins__": {}}, names), device=ours.device).expand(ours.shape)


def _differs(ours: Any, eager: Any, exact: Any, scale: bool) -> Any:
    if (ours.shape, ours.dtype) != (eager.shape, eager.dtype):
        return torch.ones(1, dtype=torch.bool)
    ours, eager, exact = ours.flatten(), eager.flatten(), exact.flatten()
    if not eager.is_floating_point():
        return ours != eager
    a, b = ours.double(), eager.double()
    # A result that is too small for its dtype may have either sign: fused operations round another one to 0.
    signs = (ours.signbit() == eager.signbit()) | (ours.signbit() == exact.signbit()) | (exact != 0)
    same = ((ours == eager) & signs) | (ours.isnan() & eager.isnan())
    exact = torch.where(exact.double().isfinite(), exact.double(), b)
    floor = 8 * torch.finfo(eager.dtype).smallest_normal * torch.finfo(eager.dtype).eps
    allowed = torch.maximum(4 * (b - exact).abs(), _CLOSE[eager.dtype] * (exact.abs() + float(scale)) + floor)
    near = a.isfinite() & b.isfinite() & ((a - exact).abs() <= allowed) & ((a != 0) | (b != 0) | (exact != 0))
    return ~(same | near)


def check_table(device: Device, dtypes: Sequence[str]) -> None:
    """Fails with every difference that isn't accepted."""
    found, lowered = [], set[str]()
    for row, ours in table(device, dtypes):
        lowered.add(row.call.operator)
        others = differences(row, ours)
        if others:
            found.append(f"{row.call.name}: {len(others)}, such as {'; '.join(others[:4])}")
    assert not found, "\n".join(found)
    assert len(lowered) > 30
