"""Test tools: a module as a `Graph` through torch.export, a small interpreter of graphs, and a check of rewrites."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import InputKind

from cuda_agent.core.graph import DtypeArg, Graph, GraphInput, Node, NonFinite, Ref, TensorMeta, ValueKind
from cuda_agent.playbook.algebra import rewrite


def meta_of(value: torch.Tensor) -> TensorMeta:
    return TensorMeta(
        shape=tuple(value.shape), dtype=str(value.dtype).removeprefix("torch."), strides=tuple(value.stride())
    )


def _arg(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return Ref(ref=value.name)
    if isinstance(value, torch.dtype):
        return DtypeArg(dtype=str(value).removeprefix("torch."))
    if isinstance(value, list | tuple):
        return [_arg(item) for item in value]
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return str(value)
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return NonFinite(nonfinite="inf" if value > 0 else "-inf")
    return value


def capture(module: torch.nn.Module, *inputs: torch.Tensor) -> tuple[Graph, dict[str, torch.Tensor]]:
    """The module's graph and its weights by name in the graph."""
    with torch.no_grad():
        program = torch.export.export(module.eval(), inputs).run_decompositions({})
    state = {**program.state_dict, **program.constants}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    graph_inputs, nodes, outputs, weights = [], [], (), {}
    position = 0
    for node in program.graph.nodes:
        if node.op == "placeholder":
            spec = specs[node.name]
            meta = meta_of(node.meta["val"])
            if spec.kind is InputKind.USER_INPUT:
                graph_inputs.append(GraphInput(name=node.name, kind=ValueKind.INPUT, meta=meta, position=position))
                position += 1
                continue
            kind = {
                InputKind.PARAMETER: ValueKind.PARAMETER,
                InputKind.BUFFER: ValueKind.BUFFER,
                InputKind.CONSTANT_TENSOR: ValueKind.CONSTANT,
            }[spec.kind]
            weights[node.name] = state[spec.target].detach()
            values = None
            if kind is ValueKind.CONSTANT:
                values = tuple(float(item) for item in weights[node.name].flatten())
            graph_inputs.append(GraphInput(name=node.name, kind=kind, meta=meta, target=spec.target, values=values))
        elif node.op == "call_function":
            value = node.meta["val"]
            values = value if isinstance(value, list | tuple) else (value,)
            metas = tuple(meta_of(item) if isinstance(item, torch.Tensor) else None for item in values)
            name = "getitem" if node.target is operator.getitem else str(node.target)
            kwargs = {key: _arg(item) for key, item in node.kwargs.items()}
            nodes.append(Node(name=node.name, op=name, args=tuple(map(_arg, node.args)), kwargs=kwargs, outputs=metas))
        elif node.op == "output":
            outputs = tuple(item.name for item in node.args[0])
    return Graph(
        inputs=tuple(graph_inputs),
        nodes=tuple(nodes),
        outputs=outputs,
        output_spec='{"t": 0}' if len(outputs) == 1 else json.dumps({"tuple": [{"t": i} for i in range(len(outputs))]}),
        forward_parameters=tuple(item.name for item in graph_inputs if item.position is not None),
        state={name: meta_of(value) for name, value in module.state_dict().items()},
        state_parameters=tuple(name for name, _ in module.named_parameters()),
    ), weights


def _value(arg: Any, values: Mapping[str, Any], dtype: torch.dtype | None) -> Any:
    if isinstance(arg, Ref):
        return values[arg.ref]
    if isinstance(arg, DtypeArg):
        named = getattr(torch, arg.dtype)
        return dtype if dtype is not None and named.is_floating_point else named
    if isinstance(arg, NonFinite):
        return float(arg.nonfinite)
    if isinstance(arg, list | tuple):
        return [_value(item, values, dtype) for item in arg]
    return arg


def _operator(name: str) -> Any:
    if name == "getitem":
        return operator.getitem
    library, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, library), packet), overload)


def run(graph: Graph, values: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """Execute a graph; with `dtype`, every float type named in it becomes that one. Checks the metas' shapes."""
    known: dict[str, Any] = dict(values)
    for node in graph.nodes:
        keywords = {
            key: _value(item, known, dtype)
            for key, item in node.kwargs.items()
            if key not in ("layout", "device", "pin_memory", "memory_format")
        }
        result = _operator(node.op)(*[_value(item, known, dtype) for item in node.args], **keywords)
        for meta, item in zip(node.outputs, result if isinstance(result, list | tuple) else [result], strict=False):
            assert meta is None or tuple(item.shape) == meta.shape, f"{node.name}: {tuple(item.shape)} != {meta.shape}"
            if dtype is None and meta is not None:
                assert str(item.dtype) == f"torch.{meta.dtype}", f"{node.name}: {item.dtype} != {meta.dtype}"
        known[node.name] = result
    return [known[name] for name in graph.outputs]


def randomised(weights: Mapping[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Weights redrawn; positive ones (variances) stay positive."""
    torch.manual_seed(seed)
    result = {}
    for name, value in weights.items():
        if not value.is_floating_point() or value.dim() == 0:
            result[name] = value
        elif "var" in name:
            result[name] = torch.rand_like(value) + 0.5
        else:
            result[name] = torch.randn_like(value)
    return result


def in_float64(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.double() if value.is_floating_point() else value for name, value in values.items()}


def operators(graph: Graph | None) -> Sequence[str]:
    return [node.op.removeprefix("aten.").split(".")[0] for node in graph.nodes] if graph else []


class Function(nn.Module):
    """A function of inputs and parts."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def check(module, *inputs, tolerance=1e-12, **options):
    """Rewrite, compare in float64 over two draws of weights, run in the graph's own types too. Returns the result."""
    graph, weights = capture(module, *inputs)
    result = rewrite(graph, **options)
    names = [item.name for item in graph.inputs if item.position is not None]
    for seed in range(2):
        drawn = randomised(weights, seed)
        values = {
            **drawn,
            **dict(zip(names, (torch.randn_like(i) if i.is_floating_point() else i for i in inputs), strict=True)),
        }
        for dtype in (torch.float64, None):
            known = in_float64(values) if dtype else values
            expected = run(graph, known, dtype)
            derived = run(result.derive, known, dtype) if result.derive else []
            more = {f"derived_{k}": value for k, value in enumerate(derived)}
            actual = run(result.graph, {**known, **more}, dtype)
            assert len(actual) == len(expected)
            for a, e in zip(actual, expected, strict=True):
                assert a.shape == e.shape and a.dtype == e.dtype
                limit = tolerance if dtype else (3e-2 if e.dtype == torch.bfloat16 else 1e-4)
                assert (a - e).norm() <= limit * max(1.0, e.norm().item()), (operators(result.graph), dtype)
    return result


def main_ops(result):
    return list(operators(result.graph))
