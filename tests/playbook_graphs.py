"""Draws graphs of one to six operators with shapes, dtypes and layouts, and compares their kernels with eager."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import NotCovered
from cuda_agent.playbook.algebra import rewrite
from cuda_agent.workers.inside.task.variants import KINDS, WIDE
from playbook_batches import Planned, compiled, planned, results
from playbook_harness import flat, graph_of

_LARGEST = 4096
_DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
_MORE_DTYPES = (*_DTYPES, torch.uint8, torch.bool)
_VARIANTS = ("", "", "", "signs", "runs", "special", "nan")
#: the rounding of a dtype, by which operands are changed to see what a result is worth.
_ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Input:
    """An input: a row-major tensor of `shape`, seen with its dimensions in another `order`. Its values are normal, or
    changed by the judge's variant of this name."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: torch.dtype
    seed: int
    variant: str = ""

    def tensor(self) -> Any:
        generator = torch.Generator().manual_seed(self.seed)
        if self.dtype is torch.bool:
            made = torch.rand(self.shape, generator=generator) > 0.4
        elif self.dtype.is_floating_point:
            made = torch.randn(self.shape, generator=generator, dtype=torch.float64).to(self.dtype)
        else:
            made = torch.randint(0 if self.dtype is torch.uint8 else -50, 50, self.shape, generator=generator)
        made = made.to(self.dtype)
        if self.variant:
            (KINDS | WIDE)[self.variant](made, {"finite"}, generator)
        return made.permute(self.order)


@dataclass(frozen=True)
class Step:
    """An operator of `OPERATORS` on earlier values, by their numbers."""

    operator: str
    values: tuple[int, ...]
    numbers: tuple[Any, ...]


@dataclass(frozen=True)
class Program:
    """The results are the values that no step reads."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]

    def __call__(self, *tensors: Any) -> Any:
        return self.results(tensors)

    def results(self, tensors: Sequence[Any], changed: Callable[[Any], Any] = lambda value: value) -> tuple[Any, ...]:
        """Returns the results, with every value changed before it is read."""
        values = [changed(value) for value in tensors]
        for step in self.steps:
            made = OPERATORS[step.operator](*(values[at] for at in step.values), *step.numbers)
            values.append(changed(made))
        read = {at for step in self.steps for at in step.values}
        return tuple(value for at, value in enumerate(values) if at >= len(self.inputs) and at not in read)


def _float(x: Any) -> Any:
    return x if x.is_floating_point() else x.float()


def _pool(kind: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, size: kind(_float(x).unsqueeze(0).flatten(0, -2).unsqueeze(0), size)


#: name -> operator. Its tensors come first, then the numbers of `_numbers`.
OPERATORS: dict[str, Callable[..., Any]] = {
    "relu": lambda x: torch.relu(x),
    "exp": lambda x: torch.exp(torch.clamp(_float(x), -9, 9)),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "neg": lambda x: -_number(x),
    "abs": lambda x: _number(x).abs(),
    "sqrt": lambda x: torch.sqrt(_float(x).abs()),
    "log": lambda x: torch.log(_float(x).abs() + 0.5),
    "sin": torch.sin,
    "erf": torch.erf,
    "square": lambda x: _number(x) * x,
    "sign": lambda x: torch.sign(_number(x)),
    "floor": lambda x: torch.floor(_number(x)),
    "silu": lambda x: F.silu(_float(x)),
    "gelu": lambda x: F.gelu(_float(x)),
    "softplus": lambda x: F.softplus(_float(x)),
    "leaky": lambda x: F.leaky_relu(_float(x), 0.1),
    "not": torch.logical_not,
    "isfinite": torch.isfinite,
    "reciprocal": lambda x: 1.0 / (_float(x).abs() + 0.5),
    "plus": lambda x, s: x + s,
    "times": lambda x, s: _number(x) * s,
    "power": lambda x, s: torch.pow(_number(x), 2 + s % 2),
    "clamp": lambda x, s: torch.clamp(_number(x), -s, s),
    "to": lambda x, dtype: x.to(dtype),
    "floordiv": lambda x, s: _number(x) // (s + 1),
    "mod": lambda x, s: _number(x) % (s + 1),
    "add": torch.add,
    "sub": lambda x, y: _number(x) - _number(y),
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "div": lambda x, y: x / (_float(y).abs() + 0.5),
    "where": lambda x, y: torch.where(x > y, x, y),
    "less": torch.lt,
    "equal": torch.eq,
    "both": torch.logical_and,
    "hypot": lambda x, y: torch.hypot(_float(x), _float(y)),
    "lerp": lambda x, y: torch.lerp(_float(x).float(), _float(y).float(), 0.7),
    "atan2": lambda x, y: torch.atan2(_float(x), _float(y)),
    "masked": lambda x, y: _float(x).masked_fill(y > 0, -1.5),
    "sum": lambda x, d, keep: torch.sum(x, d, keepdim=keep),
    "mean": lambda x, d, keep: torch.mean(_float(x), d, keepdim=keep),
    "amax": lambda x, d, keep: torch.amax(x, d, keepdim=keep),
    "amin": lambda x, d, keep: torch.amin(x, d, keepdim=keep),
    "argmax": lambda x, d, keep: torch.argmax(_number(x), d, keepdim=keep),
    "any": lambda x, d, keep: torch.any(x > 0, d, keepdim=keep),
    "var": lambda x, d, keep: torch.var(_float(x), d, correction=0, keepdim=keep),
    "norm": lambda x, d, keep: torch.linalg.vector_norm(_float(x), dim=d, keepdim=keep),
    "logsumexp": lambda x, d, keep: torch.logsumexp(_float(x), d, keepdim=keep),
    "softmax": lambda x, d: torch.softmax(_float(x), d),
    "log_softmax": lambda x, d: torch.log_softmax(_float(x), d),
    "cumsum": lambda x, d: torch.cumsum(x, d),
    "cummax": lambda x, d: torch.cummax(_number(x), d).values,
    "flip": lambda x, d: x.flip(d),
    "transpose": lambda x, d: x.transpose(d, -1),
    "unsqueeze": lambda x, d: x.unsqueeze(d),
    "select": lambda x, d: x.select(d, x.shape[d] // 2),
    "half": lambda x, d: x.narrow(d, 0, (x.shape[d] + 1) // 2),
    "every second": lambda x, d: x[(slice(None),) * (d % max(1, x.dim())) + (slice(None, None, 2),)],
    "repeat": lambda x, d: x.repeat_interleave(2, d) if x.shape[d] == 1 else torch.cat([x, x], d),
    "roll": lambda x, d: x.roll(2, d),
    "pad": lambda x, d: F.pad(_number(x), (1, 2)),
    "tril": lambda x, d: torch.tril(_number(x)),
    "norm rows": lambda x, d: F.layer_norm(_float(x), x.shape[-1:]),
    "mean rows": lambda x, d: F.rms_norm(_float(x), x.shape[-1:]),
    "chunks": lambda x, d: x.chunk(2, d)[0] * 2,
    "flatten": lambda x: x.flatten(),
    "contiguous": lambda x: x.contiguous(),
    "cat": lambda x, y: torch.cat([x.flatten(), y.flatten()]),
    "stack": lambda x: torch.stack([x, x], -1),
    "sort out": lambda x, d: x.index_select(d, torch.argmax(_number(x), -1).flatten() % x.shape[d]),
    "gather": lambda x, d: x.gather(d, torch.argmin(_number(x), d, keepdim=True)),
    "max pool": _pool(F.max_pool1d),
    "mean pool": _pool(F.avg_pool1d),
}
_NAMES = sorted(OPERATORS)
_WITH_DIM = frozenset({
    "softmax", "log_softmax", "cumsum", "cummax", "flip", "transpose", "unsqueeze", "select", "half", "every second",
    "repeat", "roll", "pad", "tril", "norm rows", "mean rows", "chunks", "sort out", "gather",
})  # fmt: skip
_REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "argmax", "any", "var", "norm", "logsumexp"})
_SCALED = frozenset({"plus", "times", "power", "clamp", "floordiv", "mod"})
_PAIRS = frozenset({
    "add", "sub", "mul", "maximum", "minimum", "div", "where", "less", "equal", "both", "hypot", "lerp", "atan2",
    "masked", "cat",
})  # fmt: skip


def _number(x: Any) -> Any:
    return x.int() if x.dtype is torch.bool else x


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draws a program that eager runs, with the values computed along the way."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 5, 7, 8, 16, 33)), min_size=1, max_size=4)))
    inputs = []
    for number in range(draw(st.integers(1, 3))):
        own = tuple(1 if draw(st.integers(0, 4)) == 0 and number else size for size in shape)
        own = own[draw(st.integers(0, len(own) - 1)) :] if number and draw(st.booleans()) else own
        order = draw(st.permutations(range(len(own)))) if draw(st.integers(0, 2)) == 0 else range(len(own))
        stored = [0] * len(own)
        for place, dim in enumerate(order):
            stored[dim] = own[place]
        kind = draw(st.sampled_from(_MORE_DTYPES))
        inputs.append(
            Input(tuple(stored), tuple(order), kind, draw(st.integers(0, 99)), draw(st.sampled_from(_VARIANTS)))
        )
    values = [one.tensor() for one in inputs]
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 6))):
        step = _step(draw, values)
        with contextlib.suppress(RuntimeError, IndexError, NotImplementedError):
            made = OPERATORS[step.operator](*(values[at] for at in step.values), *step.numbers)
            if 0 < made.numel() <= _LARGEST and made.dim() <= 5:
                values.append(made)
                steps.append(step)
    return Program(tuple(inputs), tuple(steps))


def _step(draw: st.DrawFn, values: Sequence[Any]) -> Step:
    name = _NAMES[draw(st.integers(0, 10_007)) * 7919 % len(_NAMES)]
    last = len(values) - 1
    # The newest value is taken most often, so that operators follow each other.
    operands = [last - draw(st.integers(0, last)) * draw(st.integers(0, 1)) for _ in range(2 if name in _PAIRS else 1)]
    rank = values[operands[0]].dim()
    dim = draw(st.integers(-rank, rank - 1)) if rank else 0
    numbers: tuple[Any, ...] = ()
    if name in _REDUCTIONS:
        numbers = (dim, draw(st.booleans()))
    elif name in _WITH_DIM:
        numbers = (dim,)
    elif name in _SCALED:
        numbers = (draw(st.sampled_from((1, 2, 3, 0.5))),)
    elif name == "to":
        numbers = (draw(st.sampled_from(_MORE_DTYPES[:7])),)
    elif name.endswith("pool"):
        numbers = (2,)
    return Step(name, tuple(operands), numbers)


def drawn(batch: int, count: int) -> list[Program]:
    """Returns the programs of a batch, the same for the same number."""
    found: list[Program] = []

    @seed(batch)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def collect(program: Program) -> None:
        if program.steps and program not in found:
            found.append(program)

    collect()
    return found


@dataclass
class Outcome:
    """What became of a batch: programs with kernels, those that aren't covered, and the differences found."""

    agreed: int
    uncovered: list[str]
    failed: list[str]


def tried(programs: Sequence[Program], device: Device) -> Outcome:
    """Compares the kernels of programs with eager."""
    outcome = Outcome(0, [], [])
    plans: list[tuple[Program, Planned]] = []
    taken = set[str]()
    for program in programs:
        given = [one.tensor().to(device.value) for one in program.inputs]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graph = rewrite(graph_of(program, given)).graph
            plans.append((program, planned(graph, device, taken)))
        except NotCovered as error:
            outcome.uncovered.append(f"{error}: {program}")
        except Exception as error:  # noqa: BLE001 - whatever the planner raises otherwise is a finding
            outcome.failed.append(f"{type(error).__name__} {error}: {program}")
    plans = [(program, one) for program, one in plans if all(len(step.files) for step in one.steps)]
    launchers = compiled([one for _, one in plans], device)
    for program, one in plans:
        given = [x.tensor().to(device.value) for x in program.inputs]
        try:
            ours = results(one, launchers, torch.nn.Module(), given, device)
        except IndexError as error:
            outcome.failed.append(f"{error}: {program}")
            continue
        wrong = _differences(program, given, ours)
        outcome.agreed += not wrong
        outcome.failed += [f"{wrong}: {program}"] if wrong else []
    return outcome


def _differences(program: Program, given: list[Any], ours: list[Any]) -> str:
    """Says what differs from eager by more than a change of the operands by their rounding makes."""
    eager = flat(program(*given))
    exact = flat(program(*(x.double() if x.is_floating_point() else x for x in given)))
    others = [flat(program.results(given, _changing(given, number))) for number in range(4)]
    for at, (mine, plain, truth) in enumerate(zip(ours, eager, exact, strict=True)):
        if (mine.shape, mine.dtype) != (plain.shape, plain.dtype):
            return f"result {at} is {mine.dtype} {tuple(mine.shape)}"
        a, b, c = mine.double(), plain.double(), truth.double()
        loose = torch.stack([other[at].double() for other in [*others, exact]])
        same = (loose == b) | (loose.isnan() & b.isnan())
        spread = (loose - b).abs().nan_to_num(math.inf).masked_fill(same, 0.0).amax(0)
        # Values of this size cancelled inside one operator, where nothing is changed.
        largest = b.abs().nan_to_num(0, 0, 0).amax()
        near = (a - b).abs() <= 4 * spread + 3e-6 * b.abs() + 1e-7 * largest + 1e-30
        if mine.dtype in _ROUNDING:
            near |= (a - b).abs() <= _ROUNDING[mine.dtype] * (4 * b.abs() + 1)
            near |= (a - c).abs() <= 4 * (b - c).abs()
        near = near.logical_and(b.isfinite()) | spread.isinf()
        bad = ~(near | (a == b) | (a.isnan() & b.isnan()))
        if bad.any():
            return f"result {at}: {a[bad][:3].tolist()}, eager {b[bad][:3].tolist()}"
    return ""


def _changing(given: Sequence[Any], number: int) -> Callable[[Any], Any]:
    """Returns the function that changes values by the coarsest rounding among the inputs."""
    generator = torch.Generator().manual_seed(number)
    rounding = max((_ROUNDING[x.dtype] for x in given if x.dtype in _ROUNDING), default=_ROUNDING[torch.float32])

    def changed(value: Any) -> Any:
        if not value.is_floating_point():
            return value
        # Half a rounding up or down. Less could be rounded away again, as if the value were worth more than it is.
        signs = torch.randint(2, value.shape, generator=generator).mul(2).sub(1).to(value.device)
        return (value.double() * (1 + signs * max(rounding, _ROUNDING[value.dtype]) / 2)).to(value.dtype)

    return changed
