"""Makes the random numbers that `forward` draws inputs of the graph. `model_new.py` draws them with the same calls of
torch in the same order, so that they are the reference's where the generator has the same state."""

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import Graph, GraphInput, Node, TensorMeta, ValueKind, base_name
from cuda_agent.playbook import ir

_LIKE = "_like"
_REPEATED = frozenset({"rand", "randn", "randint", "rand_like", "randn_like", "randint_like"})


def with_drawn_inputs(graph: Graph) -> Graph:
    """Returns the graph without the nodes that draw random numbers, whose values are inputs."""
    drawn = {node.name: meta for node in graph.nodes if (meta := _drawn(node)) is not None}
    if not drawn:
        return graph
    inputs = tuple(GraphInput(name=name, kind=ValueKind.DRAWN, meta=meta) for name, meta in drawn.items())
    nodes = tuple(node for node in graph.nodes if node.name not in drawn)
    return graph.model_copy(update={"inputs": (*graph.inputs, *inputs), "nodes": nodes})


def draw_lines(graph: Graph, device: Device) -> list[str]:
    """Returns the statements that draw the numbers, those that nothing reads too, since they move the generator on."""
    return [
        f'{variable(node.name)} = torch.{_call(node, meta)}, dtype=torch.{meta.dtype}, device="{device.value}")'
        for node in graph.nodes
        if (meta := _drawn(node)) is not None
    ]


def variable(name: str) -> str:
    """Returns the Python variable of a drawn value."""
    return f"{name}_drawn"


def _drawn(node: Node) -> TensorMeta | None:
    """Returns the meta of the numbers that a node draws in row-major order; None for any other node."""
    meta = node.outputs[0] if node.outputs else None
    known = base_name(node.op) in _REPEATED and meta is not None and meta == ir.contiguous_meta(meta.shape, meta.dtype)
    return meta if known else None


def _call(node: Node, meta: TensorMeta) -> str:
    """Returns the call without its last arguments, such as `randint(0, 5, (4, 8)`."""
    name = base_name(node.op)
    # A tensor comes first for `rand_like`, and a shape last for `rand`.
    limits = node.args[1:] if name.endswith(_LIKE) else node.args[:-1]
    return f"{name.removesuffix(_LIKE)}({', '.join(map(repr, (*limits, meta.shape)))}"
