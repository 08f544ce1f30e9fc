"""`forward` as a `core.graph.Graph`: torch.export in eval mode with fake tensors, so nothing of full size is computed.

What stands in the graph:
- in-place operators are functional, composite operators in `operators.KEEP` are whole, the rest is core ATen;
- no-ops are gone (dropout in eval mode, detach, a cast to the same type, clone or contiguous that changes no stride);
- every cast is `aten._to_copy.default(x, dtype=…)`, every reshape `aten.view.default`, batch norm in eval mode
  `aten.batch_norm.default(x, weight, bias, mean, var, False, momentum, eps, False)`;
- device, layout and memory-format arguments are gone; a clone that stays changes strides only;
- whatever depends on no input and no weight and is small is a constant with its values.

`GraphInput.position` counts every leaf (tensor or not) of the flattened inputs: the argument's index where arguments
are plain.

`python -m cuda_agent.workers.inside.graph.capture TASK.py` prints the graph.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.graph import Arg, DtypeArg, Graph, NonFinite, Ref, TensorMeta
from cuda_agent.workers.inside.graph.fxgraph import GraphBuilder, refused
from cuda_agent.workers.inside.graph.operators import KEEP, base_name
from cuda_agent.workers.inside.task.taskmodule import (
    TaskModule,
    forward_parameters,
    init_signature,
    load_task_module,
    make_init_inputs,
    make_inputs,
    make_model,
)
from cuda_agent.workers.inside.task.weights import state_metas


def capture(model: Any, inputs: list[Any], module: TaskModule) -> Graph:
    """Returns the graph of `model(*inputs)` with static shapes. `model` is in eval mode; neither it nor `inputs`
    change.

    Raises TaskError for data-dependent shapes or control flow, changing buffers, and anything else that ATen doesn't
    express.
    """
    program = _export(model, inputs)
    builder = GraphBuilder(program, model, inputs)
    builder.run()
    return Graph(
        inputs=tuple(builder.inputs),
        nodes=tuple(builder.nodes),
        outputs=tuple(builder.outputs),
        output_spec=json.dumps(builder.output_spec),
        init_signature=init_signature(module.Model),
        forward_parameters=forward_parameters(module.Model),
        state=state_metas(model),
        state_parameters=tuple(name for name, _ in model.named_parameters(remove_duplicate=False)),
    )


def warm_up() -> None:
    """Makes torch import what an export needs, with a module of its own. It takes seconds and needs no device."""
    _export(torch.nn.ReLU(), [torch.zeros(1)])


def operators(graph: Graph) -> tuple[str, ...]:
    """Returns the sorted distinct names of the operators in a graph."""
    return tuple(sorted({node.op for node in graph.nodes if node.op != "getitem"}))


def _export(model: Any, inputs: list[Any]) -> Any:
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(model, tuple(inputs), strict=False)
            table = torch.export.default_decompositions()
            table = {op: rule for op, rule in table.items() if base_name(str(op)) not in KEEP}
            return program.run_decompositions(table)
    except Exception as error:  # noqa: BLE001 - the boundary to task code and to the tracer, which raises all kinds
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise refused(f"{type(error).__name__}: {first[:300]}") from None


def describe(graph: Graph) -> str:
    """Returns the graph as a readable table with a line for each value."""
    lines = []
    for item in graph.inputs:
        where = item.position if item.position is not None else item.target
        values = f" = {list(item.values[:6])}" if item.values is not None else ""
        lines.append(f"{item.kind:<10}{item.name:<32}{_shape(item.meta):<28}{'' if where is None else where}{values}")
    for node in graph.nodes:
        text = ", ".join([_text(a) for a in node.args] + [f"{k}={_text(v)}" for k, v in node.kwargs.items()])
        metas = " ".join(_shape(meta) if meta else "-" for meta in node.outputs)
        lines.append(f"{'':<10}{node.name:<32}{metas:<28}{node.op}({text})")
    lines += [f"returns   {', '.join(graph.outputs)}  as {graph.output_spec}", f"signature {graph.init_signature}"]
    return "\n".join(lines)


def _shape(meta: TensorMeta) -> str:
    contiguous, size = [], 1
    for length in reversed(meta.shape):
        contiguous.append(size)
        size *= length
    strides = "" if meta.strides == tuple(reversed(contiguous)) else f" strides {list(meta.strides)}"
    return f"{meta.dtype}{list(meta.shape)}{strides}"


def _text(arg: Arg) -> str:
    if isinstance(arg, Ref):
        return arg.ref
    if isinstance(arg, list):
        return f"[{', '.join(_text(item) for item in arg)}]"
    if isinstance(arg, DtypeArg):
        return arg.dtype
    return arg.nonfinite if isinstance(arg, NonFinite) else repr(arg)


def main(arguments: list[str]) -> int:
    """Prints the graph of a task file. This is a development tool: it runs the task's code in this process."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m cuda_agent.workers.inside.graph.capture TASK.py\n")
        return 2
    path = Path(arguments[0])
    try:
        task = load_task_module(path.read_text(), path.stem)
        model = make_model(task, make_init_inputs(task), "cpu", 0)
        sys.stdout.write(describe(capture(model, make_inputs(task, "cpu", 0), task)) + "\n")
    except CudaAgentError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
