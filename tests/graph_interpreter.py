"""Runs a captured graph with torch's own operators: what a graph says must be what `forward` does."""

import json

import torch

from cuda_agent.core.graph import DtypeArg, Graph, NonFinite, Ref, ValueKind
from cuda_agent.workers.inside.task.pytree import dtype_from_name, unflatten


def interpret(graph: Graph, inputs, state):
    """Outputs of `graph` in their nesting. `inputs`: leaves by `GraphInput.position`; `state`: the state dict."""
    values = {}
    for item in graph.inputs:
        if item.kind is ValueKind.INPUT:
            values[item.name] = inputs[item.position]
        elif item.values is not None:
            flat = torch.tensor(item.values, dtype=torch.float64).to(dtype_from_name(item.meta.dtype))
            values[item.name] = flat.reshape(item.meta.shape)
        else:
            values[item.name] = state[item.target]
    for node in graph.nodes:
        args = [_value(arg, values) for arg in node.args]
        kwargs = {key: _value(arg, values) for key, arg in node.kwargs.items()}
        if node.op == "getitem":
            result = args[0][args[1]]
        else:
            namespace, name, overload = node.op.split(".")
            if name == "view":
                args[0] = args[0].contiguous()
            result = getattr(getattr(getattr(torch.ops, namespace), name), overload)(*args, **kwargs)
        metas = (result,) if isinstance(result, torch.Tensor) else result
        for meta, tensor in zip(node.outputs, metas, strict=True):
            assert meta is None or (meta.shape, meta.dtype) == (tuple(tensor.shape), str(tensor.dtype)[6:]), node
        values[node.name] = result
    return unflatten(json.loads(graph.output_spec), [values[name] for name in graph.outputs])


def _value(arg, values):
    if isinstance(arg, Ref):
        return values[arg.ref]
    if isinstance(arg, list):
        return [_value(item, values) for item in arg]
    if isinstance(arg, DtypeArg):
        return dtype_from_name(arg.dtype)
    return float(arg.nonfinite) if isinstance(arg, NonFinite) else arg
