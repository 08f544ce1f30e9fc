"""A graph under rewriting: named nodes with their users, edited in place and read out as a `Graph` again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cuda_agent.core.graph import Arg, Graph, GraphInput, Node, Ref, TensorMeta, ValueKind
from cuda_agent.core.plan import AppliedRule
from cuda_agent.playbook import ir

_WEIGHT_KINDS = frozenset({ValueKind.PARAMETER, ValueKind.BUFFER, ValueKind.CONSTANT})
_STOCHASTIC = ("rand", "bernoulli", "multinomial", "dropout", "normal_functional")
_FLOATS = ("bfloat16", "float16", "float32", "float64")

#: A rewrite of one node: looks at it, emits new nodes before it, and names the value that takes its place.
Rule = Callable[["Draft", Node], "str | None"]


def aten(names: str) -> frozenset[str]:
    """Full operator names from short ones, `.default` where no overload is given."""
    return frozenset(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in names.split())


def contiguous(shape: Sequence[int], dtype: str) -> TensorMeta:
    """The meta of a row-major tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return TensorMeta(shape=tuple(shape), dtype=dtype, strides=tuple(reversed(strides)))


def same_layout(a: TensorMeta, b: TensorMeta) -> bool:
    """Equal strides, wherever there is more than one element."""
    return ir.same_strides(a.shape, a.strides, b.strides)


def refs(arg: Arg) -> Iterator[str]:
    """The names of the values that an argument uses, nested lists included."""
    if isinstance(arg, Ref):
        yield arg.ref
    elif isinstance(arg, list | tuple):
        for item in arg:
            yield from refs(item)


def node_refs(node: Node) -> Iterator[str]:
    for arg in (*node.args, *node.kwargs.values()):
        yield from refs(arg)


def live_nodes(graph: Graph) -> set[str]:
    """Nodes that an output depends on."""
    nodes = {node.name: node for node in graph.nodes}
    seen: set[str] = set()
    stack = list(graph.outputs)
    while stack:
        name = stack.pop()
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        stack += node_refs(nodes[name])
    mutating = {n.name for n in graph.nodes if n.op.split(".")[1 if "." in n.op else 0].endswith("_")}
    return seen | mutating


def _renamed(arg: Arg, old: str, new: str) -> Arg:
    if isinstance(arg, Ref):
        return Ref(ref=new) if arg.ref == old else arg
    if isinstance(arg, list | tuple):
        return [_renamed(item, old, new) for item in arg]
    return arg


class Draft:
    """Reads: `node`, `meta`, `uses`, `is_weight`. Writes: `emit`, `replace`, `prune`. `graph()` returns the result."""

    def __init__(self, graph: Graph) -> None:
        self._source = graph
        self.inputs: dict[str, GraphInput] = {item.name: item for item in graph.inputs}
        self.order: list[str] = [node.name for node in graph.nodes]
        self._nodes: dict[str, Node] = {node.name: node for node in graph.nodes}
        self.outputs: list[str] = list(graph.outputs)
        self._users: dict[str, set[str]] = {}
        self._weights = {item.name for item in graph.inputs if item.kind in _WEIGHT_KINDS}
        self._serial = 0
        for node in graph.nodes:
            self._register(node)

    def _register(self, node: Node) -> None:
        names = list(node_refs(node))
        for name in names:
            self._users.setdefault(name, set()).add(node.name)
        if all(name in self._weights for name in names) and not any(word in node.op for word in _STOCHASTIC):
            self._weights.add(node.name)

    def node(self, arg: Arg) -> Node | None:
        """The node that makes this value; None for an input or a literal."""
        if isinstance(arg, Ref):
            return self._nodes.get(arg.ref)
        return self._nodes.get(arg) if isinstance(arg, str) else None

    def alive(self, name: str) -> bool:
        return name in self._nodes

    def meta(self, arg: Arg) -> TensorMeta:
        """The meta of a single-tensor value, given by name or Ref."""
        name = arg.ref if isinstance(arg, Ref) else str(arg)
        if name in self.inputs:
            return self.inputs[name].meta
        meta = self._nodes[name].outputs[0]
        assert meta is not None, f"{name} holds no tensor"
        return meta

    def uses(self, name: str) -> int:
        """How many nodes use this value, plus one when the graph returns it."""
        return len(self._users.get(name, ())) + (name in self.outputs)

    def users(self, name: str) -> list[Node]:
        return [self._nodes[user] for user in self._users.get(name, ())]

    def is_weight(self, arg: Arg) -> bool:
        """Whether the value depends only on parameters, buffers and constants."""
        return isinstance(arg, Ref) and arg.ref in self._weights

    def literal(self, arg: Arg) -> float | int | None:
        """A number: a Python scalar, or a one-element constant with its value inline."""
        if isinstance(arg, bool):
            return None
        if isinstance(arg, int | float):
            return arg
        item = self.inputs.get(arg.ref) if isinstance(arg, Ref) else None
        if item is None or item.values is None or item.meta.numel != 1 or item.meta.dtype == "bool":
            return None
        return item.values[0] if item.meta.dtype in _FLOATS else int(item.values[0])

    def emit(
        self, at: Node, op: str, args: Sequence[Arg], meta: TensorMeta, kwargs: dict[str, Arg] | None = None
    ) -> Ref:
        """A new node with one result, placed before `at`."""
        return self._insert(at, op, args, (meta,), kwargs)

    def emit_several(self, at: Node, op: str, args: Sequence[Arg], metas: Sequence[TensorMeta]) -> list[Ref]:
        """The same with several results."""
        made = self._insert(at, op, args, tuple(metas), None)
        return [self._insert(at, "getitem", (made, place), (meta,), None) for place, meta in enumerate(metas)]

    def _insert(
        self, at: Node, op: str, args: Sequence[Arg], metas: tuple[TensorMeta, ...], kwargs: dict[str, Arg] | None
    ) -> Ref:
        self._serial += 1
        name = f"{op.split('.')[1] if '.' in op else op}_alg{self._serial}"
        while name in self._nodes or name in self.inputs:
            self._serial += 1
            name = f"{name}_{self._serial}"
        node = Node(name=name, op=op, args=tuple(args), kwargs=kwargs or {}, outputs=metas)
        self.order.insert(self.order.index(at.name), name)
        self._nodes[name] = node
        self._register(node)
        return Ref(ref=name)

    def _redirect(self, old: str, new: str) -> None:
        for user in sorted(self._users.pop(old, ())):
            node = self._nodes[user]
            self._nodes[user] = node.model_copy(
                update={
                    "args": tuple(_renamed(arg, old, new) for arg in node.args),
                    "kwargs": {key: _renamed(arg, old, new) for key, arg in node.kwargs.items()},
                }
            )
            self._users.setdefault(new, set()).add(user)

    def replace(self, old: str, new: str) -> None:
        """Every use of `old` becomes one of `new`; nodes that nothing uses any more go."""
        self._redirect(old, new)
        self.outputs = [new if name == old else name for name in self.outputs]
        self._drop(old)

    def substitute(self, old: str, new: str) -> None:
        """`replace`, but the graph's own outputs keep the old value."""
        self._redirect(old, new)
        self._drop(old)

    def _drop(self, name: str) -> None:
        if name not in self._nodes or self.uses(name):
            return
        node = self._nodes.pop(name)
        self.order.remove(name)
        self._users.pop(name, None)
        for source in set(node_refs(node)):
            self._users.get(source, set()).discard(name)
            self._drop(source)

    def prune(self) -> None:
        """Remove every node without a use."""
        for name in reversed(list(self.order)):
            self._drop(name)

    def graph(self) -> Graph:
        """The graph as it stands, with the inputs that are still used (those of `forward` always stay)."""
        nodes = tuple(self._nodes[name] for name in self.order)
        used = {name for node in nodes for name in node_refs(node)} | set(self.outputs)
        inputs = tuple(item for item in self.inputs.values() if item.kind is ValueKind.INPUT or item.name in used)
        return self._source.model_copy(update={"inputs": inputs, "nodes": nodes, "outputs": tuple(self.outputs)})


def apply(graph: Graph, rules: Sequence[Rule], *, limit: int = 50) -> tuple[Graph, tuple[AppliedRule, ...]]:
    """Apply rules node by node until none matches (or after `limit` sweeps). Returns the graph and which rules
    matched."""
    draft = Draft(graph)
    draft.prune()
    applied: list[AppliedRule] = []
    for _ in range(limit):
        before = len(applied)
        for name in list(draft.order):
            for rule in rules:
                node = draft.node(name)
                if node is None:
                    break
                value = rule(draft, node)
                if value is not None:
                    draft.replace(name, value)
                    applied.append(AppliedRule(rule=rule.__name__, node=name))
        if len(applied) == before:
            break
    draft.prune()
    return draft.graph(), tuple(applied)


def is_float(dtype: str) -> bool:
    return dtype in _FLOATS
