"""Plans a graph: skills take their operators, and fused kernels (`state.py`) compute the values between these."""

from collections.abc import Sequence

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import NotCovered
from cuda_agent.core.graph import Graph, Node
from cuda_agent.playbook import kernel
from cuda_agent.playbook.algebra.draft import live_nodes
from cuda_agent.playbook.algebra.recurrent import LAYERS
from cuda_agent.playbook.lower import CantLower, NeedsOther
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.operators import TABLE
from cuda_agent.playbook.plan import DEFAULT, Options, Step
from cuda_agent.playbook.state import State

#: a recurrence of the algebra -> the operator that it comes from.
LAYERS_OF = {layer: operator for operator, (layer, _) in LAYERS.items()}


def plan(
    graph: Graph,
    device: Device,
    precision: Precision,
    options: Options = DEFAULT,
    taken: Sequence[str] = (),
) -> tuple[tuple[Step, ...], State]:
    """Returns the steps in order, and the state with the layouts. No step gets a name of `taken`. Raises NotCovered,
    which names every operator without a kernel."""
    state = State(graph, device, precision, options)
    state._names.update(taken)
    live = live_nodes(graph)
    covered: set[str] = set()
    missing: dict[str, CantLower] = {}
    lines: dict[str, str] = {}
    for node in graph.nodes:
        if node.name in covered or node.name not in live:
            continue
        claim = state.claim(node) if not missing else None
        if claim is not None:
            covered |= claim.covers
            continue
        reason = state.builder.lower(node, TABLE)
        lines.setdefault(LAYERS_OF.get(node.op, node.op), f", line {node.line}" if node.line else "")
        if reason is not None and node.op in LAYERS:
            missing.setdefault(node.op, CantLower("only float32 without projections"))
        elif reason is not None and node.op in LAYERS_OF:
            missing.setdefault(LAYERS_OF[node.op], CantLower("states or weights that aren't plain tensors"))
        elif reason is not None:
            missing.setdefault(node.op, reason)
        elif not options.fused and not missing and _is_one_tensor(node) and state.strided(node.name) is None:
            state.require([node.name])
    if missing:
        # An operator that only reads a missing one's result is no cause.
        own = {op: why for op, why in missing.items() if not isinstance(why, NeedsOther)} or missing
        names = ", ".join(f"{op} ({why}{lines[op]})" for op, why in sorted(own.items()))
        raise NotCovered(
            f"No skill of the playbook covers {names}", "Try another policy, or write these kernels by hand"
        )
    state.returned = _returned(state, graph)
    state.require(list(state.returned))
    return tuple(state.steps), state


def _is_one_tensor(node: Node) -> bool:
    """Returns whether the node has one result that isn't empty."""
    meta = node.outputs[0] if len(node.outputs) == 1 else None
    return meta is not None and meta.numel > 0


def _returned(state: State, graph: Graph) -> tuple[str, ...]:
    """Returns the values that `forward` returns, in the layout of the graph's outputs. A returned input gets a copy,
    and so does a value that is in memory with another layout. A result of a step under another shape is that result."""
    given = {item.name for item in graph.inputs}
    names: list[str] = []
    #: None: under another shape.
    layouts: dict[str, tuple[int, ...] | None] = {}
    for name in graph.outputs:
        resolved, meta = state.builder.resolve(name), state.meta(name)
        value = state.builder.values[resolved]
        wanted = kernel.layout(value, meta.strides)
        whole = None if state.in_memory(resolved) else state.whole_result(resolved, wanted, names)
        if whole is not None:
            names.append(whole)
            layouts[whole] = None
            continue
        differs = layouts.get(resolved, wanted) != wanted or not state.allows(resolved, wanted)
        if resolved in given or differs:
            resolved = state.builder.pointwise(
                "copy", resolved, dtype=value.dtype, name=state.fresh(f"{cpp_name(name)}_copy")
            )
        if not state.in_memory(resolved):
            state.set_layout(resolved, meta)
        layouts[resolved] = wanted
        names.append(resolved)
    return tuple(names)
