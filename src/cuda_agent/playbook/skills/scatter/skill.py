"""Scatters: values are stored or combined at the places that indices give."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import Node
from cuda_agent.core.graph import Ref as GraphRef
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import literal
from cuda_agent.playbook.lower import Builder, CantLower
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, Claim, DoesNotApply, PlanState, Skill, pointer
from cuda_agent.playbook.skills.scatter import slices
from cuda_agent.playbook.skills.shared.operands import buffers, launch_step, one_piece

CONFIGS = {Device.CUDA: 3, Device.CPU: 1}
_ON_CPU = resources.files(__package__).joinpath("scatter.cpp")
#: how a number meets the one that is there, by its number in the kernels.
WAYS = {"set": 0, "sum": 1, "prod": 2, "amax": 3, "amin": 4}
_WAYS_OF_SCATTER = {"add": "sum", "multiply": "prod"}
_INDICES = ("int64", "int32")
#: rows that keep the multiprocessors of an H200 busy, and numbers of one that its shared memory holds.
_ROWS, _LONGEST_ROW = 132, 51_200


@dataclass(frozen=True)
class Scatter:
    """`base` with `values` at `places` (of its elements in row-major order), each combined in a `way`: all three are
    values of the builder, the latter two of one shape."""

    base: str
    places: str
    values: str
    way: str


def read(state: PlanState, node: Node) -> Scatter | None:
    """Returns the scatter that a node computes, None for others. Adds the values that compute the places."""
    name = node.op.removeprefix("aten.")
    if not node.args or not isinstance(node.args[0], GraphRef):
        return None
    base = state.meta(node.args[0].ref)
    if base.dtype not in ("float32", "int32") or not base.shape or not 0 < base.numel < 1 << 31:
        return None
    builder = state.builder
    way = _way_along(node)
    found = None
    with suppress(CantLower):
        if name == "index_put.default":
            found = _index_put(builder, node)
        elif way is not None:
            found = _along(builder, node, way)
        elif name == "index_reduce.default" and node.argument(5, "include_self", True):
            found = _index_reduce(builder, node)
    # A stored number is four bytes of any type; the other ways compute in float32.
    return found if found is not None and (base.dtype == "float32" or found.way == "set") else None


def _way_along(node: Node) -> str | None:
    """Returns how scatter, scatter_add and scatter_reduce combine numbers. Returns None for other operators, and for a
    reduction that leaves out the number in the base."""
    name = node.op.removeprefix("aten.")
    if name in ("scatter.src", "scatter.value"):
        return "set"
    if name == "scatter_add.default":
        return "sum"
    if name in ("scatter.reduce", "scatter.value_reduce"):
        return _WAYS_OF_SCATTER.get(str(node.argument(4, "reduce")))
    if name == "scatter_reduce.two" and node.argument(5, "include_self", True):
        return str(node.argument(4, "reduce"))
    return None


@dataclass(frozen=True)
class RowScatter:
    """The same within rows: `index` [..., picks] says places in the rows of `base` [..., size]; `source` is of the
    index' shape, or one number for all."""

    base: str
    index: str
    source: str | float
    way: str


def read_rows(state: PlanState, node: Node) -> RowScatter | None:
    """Returns the scatter along contiguous rows that fit shared memory, None for other nodes."""
    way = _way_along(node)
    if way not in WAYS or state.device is not Device.CUDA:
        return None
    base, dim, index, source = node.args[:4]
    if not isinstance(base, GraphRef) or not isinstance(index, GraphRef) or not isinstance(dim, int):
        return None
    shape, picks = state.meta(base.ref), state.meta(index.ref)
    rank, rows = len(shape.shape), math.prod(shape.shape[:-1])
    if shape.dtype != "float32" or picks.dtype not in _INDICES or dim % max(rank, 1) != rank - 1:
        return None
    length = shape.shape[-1]
    if rows < _ROWS or not 0 < length <= _LONGEST_ROW or picks.numel == 0 or max(rows, picks.shape[-1]) >> 31:
        return None
    if picks.shape[:-1] != shape.shape[:-1]:
        return None
    if isinstance(source, GraphRef):
        given = state.meta(source.ref)
        if given.shape != picks.shape or given.dtype != "float32":
            return None
        return RowScatter(base.ref, index.ref, source.ref, way)
    return RowScatter(base.ref, index.ref, float(source), way) if isinstance(source, int | float) else None


def _along(b: Builder, node: Node, way: str | None) -> Scatter | None:
    """Reads scatter, scatter_add and scatter_reduce: the index replaces the coordinate along one dimension."""
    base, dim, index, source = (b.arg(node, at) for at in range(4))
    shape, wanted = b.values[base].shape, b.values[index].shape
    if way not in WAYS or len(wanted) != len(shape) or 0 in wanted or b.values[index].dtype not in _INDICES:
        return None
    if isinstance(source, str):
        axes = tuple(ir.Axis(d) for d in range(len(wanted)))
        source = b.view(b.fresh("source"), wanted, source, axes)
    else:
        source = b.expand(b.pointwise("copy", source, dtype=b.values[base].dtype), wanted)
    places = _places(b, shape, wanted, {dim % len(shape): index})
    return Scatter(base, places, b.cast(source, b.values[base].dtype), way)


def _index_put(b: Builder, node: Node) -> Scatter | None:
    """base[indices] = values, or += values: indices of neighbouring dimensions, broadcast, take their place."""
    base, values = b.arg(node, 0), b.arg(node, 2)
    indices = b.plain(node.args[1])
    given = {at: one for at, one in enumerate(indices) if one is not None}
    if any(b.values[one].dtype not in _INDICES for one in given.values()) or not given:
        return None
    first, last = min(given), max(given)
    if last - first + 1 != len(given):
        return None
    shape, joint = b.values[base].shape, b.shape(*given.values())
    wanted = (*shape[:first], *joint, *shape[last + 1 :])
    if 0 in wanted:
        return None
    placed = {}
    for at, one in given.items():
        sizes = b.values[one].shape
        lead = first + len(joint) - len(sizes)
        axes = tuple(ir.Axis(lead + d if size != 1 else None) for d, size in enumerate(sizes))
        placed[at] = b.view(b.fresh("index"), wanted, one, axes)
    # Dimensions after the indexed ones move by as many as the indices have more, or fewer, than they replace.
    moved = {d: d if d < first else d + len(joint) - len(given) for d in range(len(shape)) if d not in given}
    places = _places(b, shape, wanted, placed, moved, "wrap_index")
    way = "sum" if node.argument(3, "accumulate", False) else "set"
    return Scatter(base, places, b.cast(b.expand(values, wanted), b.values[base].dtype), way)


def _index_reduce(b: Builder, node: Node) -> Scatter | None:
    """base.index_reduce(dim, index, source, way): slices of the source, each at a place along one dimension."""
    base, dim, index, source = (b.arg(node, at) for at in range(4))
    way, shape, wanted = str(node.argument(4, "reduce")), b.values[base].shape, b.values[source].shape
    if way not in WAYS or len(wanted) != len(shape) or len(b.values[index].shape) != 1 or 0 in wanted:
        return None
    axes = (ir.Axis(dim % len(shape)),)
    placed = b.view(b.fresh("index"), wanted, index, axes)
    return Scatter(base, _places(b, shape, wanted, {dim % len(shape): placed}), b.cast(source, "float32"), way)


def _places(
    b: Builder,
    shape: Sequence[int],
    wanted: Sequence[int],
    placed: dict[int, str],
    moved: dict[int, int] | None = None,
    kind: str = "plain_index",
) -> str:
    """For each element of shape `wanted` its place in a row-major tensor of `shape`: dimension d by the index placed
    there, or by the element's own coordinate `moved[d]` (d where not given)."""
    op, total = b.typed("int32"), ""
    for dim, stride in enumerate(ir.contiguous(shape)):
        if dim in placed:
            term = op("mul", op(kind, b.cast(placed[dim], "int32"), shape[dim]), stride)
        else:
            term = b.iota("place", wanted, dim if moved is None else moved[dim], 0, stride)
        total = op("add", total, term) if total else term
    return total


class ScatterSkill(Skill):
    """scatter, scatter_add, scatter_reduce, index_put, index_reduce of float32, and of int32 without a combination.
    What stands for index_add, index_copy and index_fill is index_put."""

    def claim(self, state: PlanState, node: Node) -> Claim | None:
        """Returns the step for a scatter, None for other nodes. Puts places and values into memory."""
        whole = slices.read(state, node, _way_along(node)) if state.device is Device.CUDA else None
        if whole is not None and whole.way in WAYS:
            with suppress(DoesNotApply):
                return Claim(slices.step(state, node, whole, WAYS[whole.way]), frozenset({node.name}))
        within = read_rows(state, node)
        if within is not None:
            return self._claim_rows(state, node, within)
        call = read(state, node)
        if call is None:
            return None
        base, places, values = (one_piece(state, name) for name in (call.base, call.places, call.values))
        cuda = state.device is Device.CUDA
        shape = [math.prod(base.shape), math.prod(places.shape), WAYS[call.way]]
        name = f"scatter_{cpp_name(node.name)}"
        tunable = f"scatter_{call.way}_{shape[1]}_of_{shape[0]}"
        given = {"base": pointer(base), "places": pointer(places), "values": pointer(values)}
        step = launch_step(
            name,
            "launch_scatter",
            {"void* out": f"{cpp_name(node.name)}.data_ptr()", **given},
            {"shape": shape},
            inputs=buffers((base, places, values)),
            outputs=(Buffer(node.name, ir.contiguous_meta(base.shape, state.meta(call.base).dtype)),),
            files=slices.sources("scatter") if cuda else {"kernels/scatter.cpp": _ON_CPU.read_text()},
            tunables={tunable: CONFIGS[state.device]} if cuda else {},
        )
        return Claim(step, frozenset({node.name}))

    def _claim_rows(self, state: PlanState, node: Node, call: RowScatter) -> Claim:
        base, index = one_piece(state, call.base, 4), one_piece(state, call.index)
        source = one_piece(state, call.source) if isinstance(call.source, str) else None
        wide = state.meta(call.index).dtype == "int64"
        rows, size, picks = math.prod(base.shape[:-1]), base.shape[-1], index.shape[-1]
        name, tunable = f"scatter_{cpp_name(node.name)}", f"scatter_{call.way}_{picks}_of_{size}_in_{rows}"
        shape = (rows, size, picks, WAYS[call.way], int(wide))
        given = {"base": pointer(base), "places": pointer(index, 8 if wide else 4), "values": pointer(source)}
        value = literal(0.0 if isinstance(call.source, str) else call.source, "f32")
        step = launch_step(
            name,
            "launch_scatter_rows",
            {"void* out": f"{cpp_name(node.name)}.data_ptr()", **given, "float value": value},
            {"shape": shape},
            inputs=buffers((base, index, source)),
            outputs=(Buffer(node.name, ir.contiguous_meta(base.shape, "float32")),),
            files=slices.sources("scatter"),
            tunables={tunable: CONFIGS[Device.CUDA]},
        )
        return Claim(step, frozenset({node.name}))


SKILL = ScatterSkill
