"""Splits off the values that depend on weights only. They are computed once, when weights are loaded."""

from cuda_agent.core.graph import Graph, GraphInput, Node, Ref, ValueKind, base_name, reached
from cuda_agent.playbook import ir
from cuda_agent.playbook.algebra.draft import Draft, aten, node_refs
from cuda_agent.playbook.algebra.match import is_view

#: cheap per element: a kernel that reads the weight can compute these itself.
_CHEAP = aten("add.Tensor sub.Tensor mul.Tensor add.Scalar mul.Scalar neg _to_copy to.dtype rsub.Scalar abs relu")
#: made without a weight: comparing indices inside a kernel costs less than reading a mask.
_INDEXING = _CHEAP | aten(
    "arange arange.start arange.start_step full ones zeros eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor "
    "eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar tril triu where.self logical_not logical_and "
    "logical_or bitwise_not scalar_tensor masked_fill.Scalar full_like zeros_like ones_like eye"
)
_FROM_MEMORY = ("linear", "matmul", "bmm", "mm", "addmm", "baddbmm", "einsum", "embedding")
_INLINE_NODES = 2
_ALWAYS_SMALL = 1 << 22


def _only_addressing(draft: Draft, node: Node) -> bool:
    """Returns whether the node is a view of its operand that needs no copy. A clone counts too, since kernels write
    their results in any order."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Ref) or not (is_view(node) or node.op == "aten.clone.default"):
        return False
    meta = draft.meta(source)
    may_copy = node.op in ("aten.reshape.default", "aten.flatten.using_ints")
    return not may_copy or ir.same_strides(meta.shape, meta.strides, ir.contiguous(meta.shape))


def _ancestors(draft: Draft, name: str) -> set[str]:
    """Returns all values that this one is computed from, itself included."""
    return set(reached([name], lambda at: node_refs(node) if (node := draft.node(at)) is not None else ()))


def _readers(draft: Draft, name: str) -> list[Node]:
    """Returns the nodes that read a value, directly or through views."""
    found: list[Node] = []
    for user in draft.users(name):
        found.extend(_readers(draft, user.name) if _only_addressing(draft, user) else [user])
    return found


def _worth_deriving(draft: Draft, name: str) -> bool:
    """Returns whether a value should be derived. It should where a library call reads it. Otherwise it should not where
    the kernel that reads it can compute it at almost no cost, or where reading costs more than computing."""
    readers = _readers(draft, name)
    names = [base_name(user.op) for user in readers]
    if any(name in _FROM_MEMORY or name.startswith("conv") for name in names):
        return True
    family = _ancestors(draft, name)
    nodes = [node for item in family if (node := draft.node(item)) is not None]
    sources = [draft.inputs[item] for item in family if item in draft.inputs]
    work = [node for node in nodes if not _only_addressing(draft, node)]
    weightless = all(item.kind is ValueKind.CONSTANT and item.meta.numel == 1 for item in sources)
    if weightless and all(node.op in _INDEXING for node in work):
        return False
    pointwise_uses = all(user.op in _CHEAP for user in readers)
    if pointwise_uses and len(work) <= _INLINE_NODES and all(node.op in _CHEAP for node in work):
        return False
    return draft.meta(name).numel <= max(_ALWAYS_SMALL, 4 * sum(item.meta.numel for item in sources))


def _frontier(draft: Draft) -> list[str]:
    """Returns the computed values that depend on weights only and that input-dependent nodes read, in order. Views of
    them stay with the reader."""
    found: dict[str, None] = {}
    for name in draft.order:
        node = draft.node(name)
        assert node is not None
        if draft.is_weight(Ref(ref=name)):
            continue
        for source in node_refs(node):
            if not draft.is_weight(Ref(ref=source)):
                continue
            below = draft.node(source)
            while below is not None and _only_addressing(draft, below):
                source = node_refs(below)[0]
                below = draft.node(source)
            if below is not None and len(below.outputs) == 1 and _worth_deriving(draft, source):
                found[source] = None
    return [name for name in draft.order if name in found]


def split_derive(graph: Graph) -> tuple[Graph | None, Graph]:
    """Returns (derive, main). Values that depend only on parameters, buffers and constants move to `derive`, or None
    where there are none. Its k-th output is the input `derived_k` of `main` (kind parameter, no target, dense in the
    captured order). Views of weights, values that cost a kernel almost nothing, and the graph's own outputs stay in
    `main`."""
    draft = Draft(graph)
    names = _frontier(draft)
    if not names:
        return None, graph
    family = set().union(*(_ancestors(draft, name) for name in names))
    derive = graph.model_copy(
        update={
            "inputs": tuple(item for item in graph.inputs if item.name in family),
            "nodes": tuple(node for node in graph.nodes if node.name in family),
            "outputs": tuple(names),
            "output_spec": "",
        }
    )
    taken = {item.name for item in graph.inputs} | {node.name for node in graph.nodes}
    for index, name in enumerate(names):
        meta = draft.meta(name)
        fresh = f"derived_{index}"
        assert fresh not in taken, f"{fresh} is taken"
        stored = meta.model_copy(update={"strides": ir.dense_strides(meta.shape, meta.strides)})
        draft.inputs[fresh] = GraphInput(name=fresh, kind=ValueKind.PARAMETER, meta=stored)
        draft.substitute(name, fresh)
    draft.prune()
    return derive, draft.graph()
