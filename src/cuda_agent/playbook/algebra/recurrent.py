"""Splits recurrent networks into layers: one product for the input of all steps, then the recurrence."""

from collections.abc import Sequence

from cuda_agent.core.graph import Arg, Node, Ref
from cuda_agent.playbook.algebra.draft import Draft, NoMatch, refuse
from cuda_agent.playbook.algebra.emit import linear
from cuda_agent.playbook.ir import contiguous_meta

#: operator -> the recurrence's name in rewritten graphs, and its number of gates.
LAYERS = {"aten.lstm.input": ("recurrent.lstm", 4), "aten.gru.input": ("recurrent.gru", 3),
          "aten.rnn_tanh.input": ("recurrent.tanh", 1), "aten.rnn_relu.input": ("recurrent.relu", 1)}  # fmt: skip


def layers_of_networks(draft: Draft, node: Node) -> str:
    """lstm, gru and rnn over x [steps, batch, ·] (or batch first) become, for every layer, one product x·W_ihᵀ + b_ih
    for all steps and both directions, and a node `recurrent.*`:

    (given [steps, batch, directions · gates · hidden], W_hh [directions · gates · hidden, hidden], b_hh or None, h₀
    [directions, batch, hidden] or None for zeros, c₀ or None, directions, batch first) -> states [steps, batch,
    directions · hidden], hₙ [directions, batch, hidden], cₙ of an LSTM
    """
    refuse(node.op not in LAYERS or any(user.op != "getitem" for user in draft.users(node.name)))
    op, gates = LAYERS[node.op]
    x, given, weights = node.args[:3]
    biased, layers, directions = bool(node.args[3]), int(str(node.args[4])), 2 if node.args[7] else 1
    starts = list(given) if isinstance(given, list | tuple) else [given]
    each = 4 if biased else 2
    if not isinstance(x, Ref) or not isinstance(weights, list | tuple) or len(weights) != layers * directions * each:
        raise NoMatch
    refuse((node.args[6] and node.args[5]) or draft.meta(x).dtype != "float32" or 0 in draft.meta(x).shape)
    batch_first = bool(node.args[8])
    ends: list[tuple[Ref, ...]] = []
    for layer in range(layers):
        parts = weights[layer * directions * each : (layer + 1) * directions * each]
        w_ih, w_hh, b_ih, b_hh = (_stacked(draft, node, parts[i::each]) if i < each else None for i in range(4))
        assert w_ih is not None and w_hh is not None
        hidden = draft.meta(w_hh).shape[1]
        x = linear(draft, node, x, w_ih, b_ih)
        lead = draft.meta(x).shape[:2]
        state = (directions, lead[0] if batch_first else lead[1], hidden)
        began = [_start(draft, node, start, layer * directions, state) for start in starts]
        args: tuple[Arg, ...] = (x, w_hh, b_hh, began[0], began[1] if len(began) > 1 else None, directions, batch_first)
        metas = [
            contiguous_meta((*lead, directions * hidden), "float32"),
            *[contiguous_meta(state, "float32")] * len(starts),
        ]
        assert draft.meta(w_hh).shape[0] == directions * gates * hidden
        x, *end = draft.emit_several(node, op, args, metas)
        ends.append(tuple(end))
    results = [x, *(_stacked(draft, node, last) for last in zip(*ends, strict=True))]
    for user in draft.users(node.name):
        found = results[int(str(user.args[1]))]
        assert found is not None
        draft.replace(user.name, found.ref)
    return x.ref


def _stacked(draft: Draft, at: Node, parts: Sequence[Arg]) -> Ref | None:
    """Emits the concatenation of tensors along their first dimension. Returns None where there are none."""
    found = [part for part in parts if isinstance(part, Ref)]
    if len(found) < 2:
        return found[0] if found else None
    shapes = [draft.meta(part).shape for part in found]
    meta = contiguous_meta((sum(shape[0] for shape in shapes), *shapes[0][1:]), draft.meta(found[0]).dtype)
    return draft.emit(at, "aten.cat.default", (list(found), 0), meta)


def _start(draft: Draft, at: Node, start: Arg, first: int, shape: Sequence[int]) -> Ref | None:
    """Returns a layer's part of the initial states, None for zeros."""
    assert isinstance(start, Ref)
    made, known = draft.node(start), draft.inputs[start.ref].values if start.ref in draft.inputs else None
    if made is not None and (made.op == "aten.zeros.default" or (made.op == "aten.full.default" and made.args[1] == 0)):
        return None
    if known is not None and not any(known):
        return None
    args = (start, 0, first, first + shape[0])
    return draft.emit(at, "aten.slice.Tensor", args, contiguous_meta(shape, "float32"))
