"""Lowers a graph of ATen operators to values of `ir`. The functions are in the tables of `operators/`.

The other operators are left to the skills, or are reported as not covered.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cuda_agent.core.graph import DtypeArg, Graph, Node, NonFinite, Ref, TensorMeta
from cuda_agent.playbook import ir

#: adds the values of a node. It returns the node's value, or one for each result that is available; an operator without
#: results returns None.
Lowering = Callable[["Builder", Node], "str | tuple[str | None, ...] | None"]


class CantLower(Exception):
    """This call of the operator isn't covered. The text says why."""


class NeedsOther(CantLower):
    """The call reads a result that isn't covered, so its own operator may be covered."""


def operator_name(op: str) -> str:
    """Returns `gelu` for `aten.gelu.default`. Names of other namespaces stay as they are."""
    parts = op.split(".")
    return parts[1] if parts[0] == "aten" and len(parts) > 1 else op


@dataclass
class Builder:
    """Builds the values of one graph. `alias` maps graph values to the values that replace them."""

    graph: Graph
    values: dict[str, ir.Value] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)
    tuples: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    _serial: int = 0

    def resolve(self, name: str) -> str:
        while name in self.alias:
            name = self.alias[name]
        return name

    def meta(self, name: str) -> TensorMeta:
        """Returns the meta of a graph value with a row-major layout."""
        value = self.values[self.resolve(name)]
        return ir.contiguous_meta(value.shape, value.dtype)

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    def rank(self, name: str) -> int:
        return len(self.values[name].shape)

    def inner(self, name: str) -> str:
        """Returns the dtype for intermediate results that are computed from a value."""
        return self.internal(self.values[name].dtype)

    def arg(self, node: Node, index: int, name: str = "", default: Any = None) -> Any:
        """Returns an argument as Python data, a tensor as its value's name. Raises NeedsOther for an unknown one."""
        return self.plain(node.argument(index, name, default))

    def args(self, node: Node, *indices: int) -> list[Any]:
        """Returns several arguments without names or defaults."""
        return [self.arg(node, index) for index in indices]

    def constant(self, node: Node, index: int) -> tuple[float, ...] | None:
        """Returns the elements of an argument that is a small constant tensor, else None."""
        raw = node.argument(index, "")
        known = {item.name: item.values for item in self.graph.inputs}
        return known.get(raw.ref) if isinstance(raw, Ref) else None

    def plain(self, raw: Any) -> Any:
        """Returns an argument as Python data."""
        if isinstance(raw, Ref):
            name = self.resolve(raw.ref)
            if name not in self.values:
                raise NeedsOther(f"reads {raw.ref}, which no kernel makes")
            return name
        if isinstance(raw, NonFinite):
            return float(raw.nonfinite)
        if isinstance(raw, DtypeArg):
            return raw.dtype
        if isinstance(raw, list | tuple):
            return [self.plain(item) for item in raw]
        return raw

    def out(self, node: Node, index: int = 0) -> TensorMeta:
        """Returns the meta of a node's result. Raises CantLower where it is no tensor."""
        meta = node.outputs[index]
        if meta is None:
            raise CantLower("has no tensor result")
        return meta

    def fresh(self, stem: str) -> str:
        self._serial += 1
        return f"{stem}__{self._serial}"

    def add(self, value: ir.Value) -> str:
        self.values[value.name] = value
        return value.name

    def shape(self, *args: str | ir.Scalar) -> tuple[int, ...]:
        """Returns the shape to which PyTorch broadcasts the values among the arguments."""
        return ir.broadcast(*(self.values[arg].shape for arg in args if isinstance(arg, str)))

    def pointwise(
        self, op: str, *args: str | ir.Scalar, dtype: str, at: str | None = None, name: str | None = None
    ) -> str:
        """Adds `op`, computed in type `at` (by default the compute type of `dtype`) and stored as `dtype`."""
        at = at or ir.compute_type(dtype)
        args = tuple(arg if isinstance(arg, str) else ir.as_scalar_of(arg, dtype) for arg in args)
        return self.add(ir.Pointwise(name or self.fresh(op), self.shape(*args), dtype, op, args, at))

    def typed(self, dtype: str) -> Callable[..., str]:
        """Returns `pointwise` for results of this dtype."""
        return partial(self.pointwise, dtype=dtype)

    def test(self, op: str, *args: str | ir.Scalar, at: str = "b") -> str:
        """Adds an operator with a bool result, computed in type `at`."""
        return self.pointwise(op, *args, dtype="bool", at=at)

    def result(self, node: Node, op: str, *args: str | ir.Scalar, at: str | None = None) -> str:
        """Adds `op` as the node's own value."""
        return self.pointwise(op, *args, dtype=self.out(node).dtype, at=at, name=node.name)

    def cast(self, arg: str, dtype: str, name: str | None = None) -> str:
        """Adds a cast, or returns the value where it has the dtype already and needs no other name."""
        if name is None and self.values[arg].dtype == dtype:
            return arg
        return self.pointwise("cast", arg, dtype=dtype, name=name)

    def reduce(
        self,
        kind: str,
        arg: str,
        dims: Sequence[int],
        *,
        dtype: str,
        keep: bool = False,
        slides: tuple[ir.Slide, ...] = (),
    ) -> str:
        """Adds a reduction. Raises CantLower for an empty one."""
        full = self.shape_of(arg)
        dims = tuple(sorted({d % max(len(full), 1) for d in dims})) if full else ()
        if any(full[d] == 0 for d in dims):
            raise CantLower("reduces nothing")
        if dtype == "bool":
            kind = {"max": "any", "min": "all"}.get(kind, kind)
        shape = tuple(size for d, size in enumerate(full) if d not in dims)
        result = self.add(ir.Reduce(self.fresh(kind), shape, dtype, kind, arg, dims, slides))
        if not keep:
            return result
        shape = tuple(1 if d in dims else size for d, size in enumerate(full))
        return self.view(self.fresh("keep"), shape, result, [ir.Axis(d) for d in range(len(full)) if d not in dims])

    def view(self, name: str, shape: Sequence[int], arg: str, axes: Iterable[ir.Axis]) -> str:
        """Adds a strided view."""
        return self.add(ir.Strided(name, tuple(shape), self.values[arg].dtype, arg, tuple(axes)))

    def slice(self, arg: str, dim: int, start: int, size: int, *, name: str, step: int = 1) -> str:
        """Adds a view of `size` elements along a dimension."""
        full = self.shape_of(arg)
        axes = [ir.Axis(d, step, start) if d == dim else ir.Axis(d) for d in range(len(full))]
        return self.view(name, ir.resized(full, dim, size), arg, axes)

    def select(self, arg: str, dim: int, index: int, *, name: str) -> str:
        """Adds a view at one index of a dimension."""
        full = self.shape_of(arg)
        axes = [ir.Axis(None, 1, index) if d == dim else ir.Axis(d - (d > dim)) for d in range(len(full))]
        return self.view(name, ir.resized(full, dim), arg, axes)

    def iota(self, stem: str, shape: Sequence[int], dim: int = 0, start: int = 0, step: int = 1) -> str:
        """Adds start + step · (index along a dimension), in int32."""
        return self.add(ir.Iota(self.fresh(stem), tuple(shape), "int32", dim, start, step))

    def pad(self, shape: Sequence[int], arg: str, low: Sequence[int], fill: ir.Scalar) -> str:
        """Adds a value surrounded by `fill`, which begins at `low` in each dimension."""
        source = self.values[arg]
        return self.add(ir.Pad(self.fresh("padded"), tuple(shape), source.dtype, arg, tuple(low), source.shape, fill))

    def take(self, arg: str, dim: int, index: str, *, name: str, wraps: bool = False) -> str:
        """Adds index_select: the dimensions of the index replace dimension `dim`."""
        picks = self.rank(index)
        axes = tuple(-1 if d == dim else d + (picks - 1) * (d > dim) for d in range(self.rank(arg)))
        shape = ir.resized(self.shape_of(arg), dim, *self.shape_of(index))
        dtype = self.values[arg].dtype
        return self.add(ir.Take(name, shape, dtype, arg, dim, index, axes, tuple(range(dim, dim + picks)), wraps))

    def reshape(self, arg: str, shape: Sequence[int], name: str | None = None) -> str:
        return self.add(ir.Reshape(name or self.fresh("reshape"), tuple(shape), self.values[arg].dtype, arg))

    def expand(self, arg: str, shape: Sequence[int], name: str | None = None) -> str:
        lead = len(shape) - self.rank(arg)
        axes = [ir.Axis(d + lead if size != 1 else None) for d, size in enumerate(self.shape_of(arg))]
        return self.view(name or self.fresh("expand"), shape, arg, axes)

    def internal(self, dtype: str) -> str:
        """Returns the dtype for intermediate results, which aren't rounded to 16 bits."""
        return "float32" if dtype in ir.HALF_DTYPES else dtype

    def finish(self, node: Node, arg: str) -> str:
        """Gives a value the node's name, shape and dtype."""
        meta = self.out(node)
        if self.values[arg].shape != meta.shape:
            arg = self.expand(arg, meta.shape)
        return self.cast(arg, meta.dtype, node.name)

    def source(self, name: str, meta: TensorMeta) -> str:
        return self.add(ir.Source(name, meta.shape, meta.dtype, meta.strides))

    def lower(self, node: Node, table: dict[str, Lowering]) -> CantLower | None:
        """Adds the node's value. Returns None, or the reason why the node isn't covered."""
        if node.op in ("getitem", "_operator.getitem", "operator.getitem"):
            return self._getitem(node)
        name = operator_name(node.op)
        in_place = name.endswith("_") and not name.endswith("__") and name[:-1] in table
        rule = table.get(name[:-1] if in_place else name)
        if rule is None:
            return CantLower("no kernel")
        try:
            if in_place:
                self._check_in_place(node)
            result = rule(self, node)
        except CantLower as error:
            return error
        if isinstance(result, tuple):
            self.tuples[node.name] = result
        elif result is not None and result != node.name:
            self.alias[node.name] = result
        if in_place and isinstance(node.args[0], Ref):
            self.alias[self.resolve(node.args[0].ref)] = self.resolve(node.name)
        return None

    def _check_in_place(self, node: Node) -> None:
        target = self.values[self.arg(node, 0)]
        if isinstance(target, ir.Source | ir.Strided | ir.Reshape):
            raise CantLower("changes memory that another value may read")
        for other in self.values.values():
            if isinstance(other, ir.Strided | ir.Reshape) and other.arg == target.name:
                raise CantLower("changes memory that a view reads")

    def _getitem(self, node: Node) -> CantLower | None:
        source, index = node.args[0], node.args[1]
        assert isinstance(source, Ref) and isinstance(index, int)
        items = self.tuples.get(source.ref)
        if items is None or items[index] is None:
            return NeedsOther(f"needs result {index} of {source.ref}")
        self.alias[node.name] = str(items[index])
        return None
