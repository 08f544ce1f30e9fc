"""Graph of ATen operators -> values of `ir`. One function an operator, in the tables of `operators/`.

Only what exists as kernels is lowered; everything else stays with the anchors' skills or is reported as not covered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.core.graph import DtypeArg, Graph, Node, NonFinite, Ref, TensorMeta
from cuda_agent.playbook import ir

Lowering = Callable[["Builder", Node], "str | tuple[str | None, ...] | None"]


class CantLower(Exception):
    """This call of the operator isn't covered; the text says why."""


class NeedsOther(CantLower):
    """The call reads a result that isn't covered, so it says nothing about its own operator."""


def operator_name(op: str) -> str:
    """`aten.gelu.default` -> `gelu`; other namespaces keep theirs."""
    parts = op.split(".")
    return parts[1] if parts[0] == "aten" and len(parts) > 1 else op


@dataclass
class Builder:
    """Grows the values of one graph. `alias` maps graph values to the values that stand for them now."""

    graph: Graph
    values: dict[str, ir.Value] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)
    tuples: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    _serial: int = 0

    # ---- reading a call

    def value(self, name: str) -> ir.Value:
        return self.values[self.resolve(name)]

    def resolve(self, name: str) -> str:
        while name in self.alias:
            name = self.alias[name]
        return name

    def meta(self, name: str) -> TensorMeta:
        """Shape and type of a graph value, as if it lay row-major."""
        value = self.value(name)
        return TensorMeta(shape=value.shape, dtype=value.dtype, strides=ir.contiguous(value.shape))

    def arg(self, node: Node, index: int, name: str = "", default: Any = None) -> Any:
        """An argument as Python data; a tensor is the name of its value. Raises CantLower for an unknown one."""
        return self.plain(node.argument(index, name, default))

    def constant(self, node: Node, index: int) -> tuple[float, ...] | None:
        """The values of an argument that is a small constant tensor, else None."""
        raw = node.argument(index, "")
        known = {item.name: item.values for item in self.graph.inputs}
        return known.get(raw.ref) if isinstance(raw, Ref) else None

    def plain(self, raw: Any) -> Any:
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
        meta = node.outputs[index]
        if meta is None:
            raise CantLower("has no tensor result")
        return meta

    # ---- making values

    def fresh(self, stem: str) -> str:
        self._serial += 1
        return f"{stem}__{self._serial}"

    def add(self, value: ir.Value) -> str:
        self.values[value.name] = value
        return value.name

    def shape(self, *args: str | ir.Scalar) -> tuple[int, ...]:
        """PyTorch's broadcast of the values among the arguments."""
        result: list[int] = []
        for arg in args:
            if isinstance(arg, str):
                shape = self.values[arg].shape
                result = [1] * (len(shape) - len(result)) + result
                for at, size in enumerate(shape, len(result) - len(shape)):
                    result[at] = size if result[at] == 1 else result[at]
        return tuple(result)

    def pointwise(
        self, op: str, *args: str | ir.Scalar, dtype: str, at: str | None = None, name: str | None = None
    ) -> str:
        """`op` computed in `at` (the compute type of `dtype` where not given), stored as `dtype`."""
        return self.add(
            ir.Pointwise(name or self.fresh(op), self.shape(*args), dtype, op, args, at or ir.compute_type(dtype))
        )

    def cast(self, arg: str, dtype: str, name: str | None = None) -> str:
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
        """Raises CantLower for an empty reduction."""
        source = self.values[arg]
        dims = tuple(sorted({d % max(len(source.shape), 1) for d in dims})) if source.shape else ()
        if any(source.shape[d] == 0 for d in dims):
            raise CantLower("reduces nothing")
        shape = tuple(size for d, size in enumerate(source.shape) if d not in dims)
        result = self.add(ir.Reduce(self.fresh(kind), shape, dtype, kind, arg, dims, slides))
        return self.keepdim(result, source.shape, dims) if keep else result

    def keepdim(self, arg: str, full: tuple[int, ...], dims: Sequence[int]) -> str:
        shape = tuple(1 if d in dims else size for d, size in enumerate(full))
        axes = tuple(ir.Axis(d) for d in range(len(full)) if d not in dims)
        return self.add(ir.Strided(self.fresh("keep"), shape, self.values[arg].dtype, arg, axes))

    def reshape(self, arg: str, shape: Sequence[int], name: str | None = None) -> str:
        return self.add(ir.Reshape(name or self.fresh("reshape"), tuple(shape), self.values[arg].dtype, arg))

    def expand(self, arg: str, shape: Sequence[int], name: str | None = None) -> str:
        source = self.values[arg]
        lead = len(shape) - len(source.shape)
        axes = tuple(ir.Axis(d + lead if size != 1 else None) for d, size in enumerate(source.shape))
        return self.add(ir.Strided(name or self.fresh("expand"), tuple(shape), source.dtype, arg, axes))

    def internal(self, dtype: str) -> str:
        """The dtype for intermediate results of a composite operator: no rounding to 16 bits inside."""
        return "float32" if dtype in ("bfloat16", "float16") else dtype

    def finish(self, node: Node, arg: str) -> str:
        """Give a value the node's name, shape and dtype."""
        meta = self.out(node)
        if self.values[arg].shape != meta.shape:
            arg = self.expand(arg, meta.shape)
        return self.cast(arg, meta.dtype, node.name)

    # ---- walking

    def source(self, name: str, meta: TensorMeta, strides: tuple[int, ...] | None = None) -> str:
        return self.add(ir.Source(name, meta.shape, meta.dtype, strides if strides is not None else meta.strides))

    def lower(self, node: Node, table: dict[str, Lowering]) -> CantLower | None:
        """Add the node's value. Returns None, or why it isn't covered."""
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
            raise CantLower("changes memory that something else may see")
        for other in self.values.values():
            if isinstance(other, ir.Strided | ir.Reshape) and other.arg == target.name:
                raise CantLower("changes memory that a view sees")

    def _getitem(self, node: Node) -> CantLower | None:
        source, index = node.args[0], node.args[1]
        assert isinstance(source, Ref) and isinstance(index, int)
        items = self.tuples.get(source.ref)
        if items is None or items[index] is None:
            return NeedsOther(f"needs result {index} of {source.ref}")
        self.alias[node.name] = str(items[index])
        return None
