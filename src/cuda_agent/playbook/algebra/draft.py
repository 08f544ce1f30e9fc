"""A graph that rewrites edit in place, with the users of each node."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from cuda_agent.core.graph import Arg, Graph, GraphInput, Node, Ref, TensorMeta, ValueKind, reached, refs
from cuda_agent.core.plan import AppliedRule
from cuda_agent.playbook import ir

_WEIGHT_KINDS = frozenset({ValueKind.PARAMETER, ValueKind.BUFFER, ValueKind.CONSTANT})
_STOCHASTIC = ("rand", "bernoulli", "multinomial", "dropout", "normal_functional")
_FLOATS = ("bfloat16", "float16", "float32", "float64")

#: a rewrite of one node. It emits new nodes before the node and returns the value that replaces it. It raises NoMatch
#: where it doesn't apply.
Rule = Callable[["Draft", Node], str]


class NoMatch(Exception):
    """The rule doesn't apply to the node."""


def refuse(reason: object) -> None:
    """Raises NoMatch where the reason holds."""
    if reason:
        raise NoMatch


def tensors(*args: Arg) -> tuple[Ref, ...]:
    """Returns the arguments. Raises NoMatch where one of them isn't a tensor."""
    found = tuple(arg for arg in args if isinstance(arg, Ref))
    refuse(len(found) != len(args))
    return found


def aten(names: str) -> frozenset[str]:
    """Returns full operator names from short ones, with `.default` where no overload is given."""
    return frozenset(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in names.split())


def same_layout(a: TensorMeta, b: TensorMeta) -> bool:
    """Returns whether the strides are equal in all dimensions of more than one element."""
    return ir.same_strides(a.shape, a.strides, b.strides)


def node_refs(node: Node) -> list[str]:
    """Returns the names of the values that a node reads."""
    return refs((*node.args, *node.kwargs.values()))


def live_nodes(graph: Graph) -> set[str]:
    """Returns the nodes that an output depends on, and those that change their operand in place."""
    nodes = {node.name: node for node in graph.nodes}
    needed = reached(graph.outputs, lambda name: node_refs(nodes[name]) if name in nodes else ())
    mutating = {n.name for n in graph.nodes if n.op.split(".")[1 if "." in n.op else 0].endswith("_")}
    return (nodes.keys() & needed) | mutating


def _renamed(arg: Arg, old: str, new: str) -> Arg:
    if isinstance(arg, Ref):
        return Ref(ref=new) if arg.ref == old else arg
    if isinstance(arg, list | tuple):
        return [_renamed(item, old, new) for item in arg]
    return arg


class Draft:
    """A graph under rewriting. `emit`, `replace` and `prune` edit it, and `graph()` returns the result."""

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
        names = node_refs(node)
        for name in names:
            self._users.setdefault(name, set()).add(node.name)
        if all(name in self._weights for name in names) and not any(word in node.op for word in _STOCHASTIC):
            self._weights.add(node.name)

    def node(self, arg: Arg) -> Node | None:
        """Returns the node that computes this value, None for an input or a literal."""
        if isinstance(arg, Ref):
            return self._nodes.get(arg.ref)
        return self._nodes.get(arg) if isinstance(arg, str) else None

    def meta(self, arg: Arg) -> TensorMeta:
        """Returns the meta of a single-tensor value, given by name or Ref."""
        name = arg.ref if isinstance(arg, Ref) else str(arg)
        if name in self.inputs:
            return self.inputs[name].meta
        meta = self._nodes[name].outputs[0]
        assert meta is not None, f"{name} holds no tensor"
        return meta

    def uses(self, name: str) -> int:
        """Returns the number of nodes that read this value, plus one when the graph returns it."""
        return len(self._users.get(name, ())) + (name in self.outputs)

    def users(self, name: str) -> list[Node]:
        return [self._nodes[user] for user in self._users.get(name, ())]

    def is_weight(self, arg: Arg) -> bool:
        """Returns whether the value depends only on parameters, buffers and constants."""
        return isinstance(arg, Ref) and arg.ref in self._weights

    def literal(self, arg: Arg) -> float | int | None:
        """Returns a number: a Python scalar, or the value of a one-element constant. Returns None for anything else."""
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
        """Inserts a node with one result before `at`."""
        return self._insert(at, op, args, (meta,), kwargs)

    def emit_several(self, at: Node, op: str, args: Sequence[Arg], metas: Sequence[TensorMeta]) -> list[Ref]:
        """Inserts a node with several results before `at`."""
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
        node = Node(name=name, op=op, args=tuple(args), kwargs=kwargs or {}, outputs=metas, line=at.line)
        self.order.insert(self.order.index(at.name), name)
        self._nodes[name] = node
        self._register(node)
        return Ref(ref=name)

    def replace(self, old: str, new: str) -> None:
        """Replaces every use of `old` by `new`, and removes the nodes that become unused."""
        self.outputs = [new if name == old else name for name in self.outputs]
        self.substitute(old, new)

    def substitute(self, old: str, new: str) -> None:
        """Replaces every use of `old` by `new`, except as an output of the graph."""
        for user in sorted(self._users.pop(old, ())):
            node = self._nodes[user]
            self._nodes[user] = node.model_copy(
                update={
                    "args": tuple(_renamed(arg, old, new) for arg in node.args),
                    "kwargs": {key: _renamed(arg, old, new) for key, arg in node.kwargs.items()},
                }
            )
            self._users.setdefault(new, set()).add(user)
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
        """Removes every node without a use."""
        for name in reversed(list(self.order)):
            self._drop(name)

    def graph(self) -> Graph:
        """Returns the graph with the inputs that are still used and all inputs of `forward`."""
        nodes = tuple(self._nodes[name] for name in self.order)
        used = {name for node in nodes for name in node_refs(node)} | set(self.outputs)
        inputs = tuple(item for item in self.inputs.values() if item.kind is ValueKind.INPUT or item.name in used)
        return self._source.model_copy(update={"inputs": inputs, "nodes": nodes, "outputs": tuple(self.outputs)})


def apply(graph: Graph, rules: Sequence[Rule], *, limit: int = 50) -> tuple[Graph, tuple[AppliedRule, ...]]:
    """Applies rules node by node until none matches, at most `limit` times. Returns the graph and the rules that
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
                with suppress(NoMatch):
                    draft.replace(name, rule(draft, node))
                    applied.append(AppliedRule(rule=rule.__name__, node=name))
        if len(applied) == before:
            break
    draft.prune()
    return draft.graph(), tuple(applied)


def is_float(dtype: str) -> bool:
    return dtype in _FLOATS
