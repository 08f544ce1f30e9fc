"""`forward` as a `core.graph.Graph`: torch.export in eval mode with fake tensors, so nothing of full size is computed.

What stands in the graph:
- in-place operators are functional, composite operators in `operators.yaml` are whole, the rest is core ATen;
- no-ops are gone (dropout in eval mode, detach, a cast to the same type, clone or contiguous that changes no stride);
- every cast is `aten._to_copy.default(x, dtype=…)`, every reshape `aten.view.default`, batch norm in eval mode
  `aten.batch_norm.default(x, weight, bias, mean, var, False, momentum, eps, False)`;
- device, layout and memory-format arguments are gone; a clone that stays changes strides only;
- whatever depends on no input and no weight and is small is a constant with its values.

`GraphInput.position` counts every leaf (tensor or not) of the flattened inputs: the argument's index where arguments
are plain. `scripts/show_graph.py TASK.py` prints the graph.
"""

from __future__ import annotations

import json
import traceback
import warnings
from typing import Any

import torch

from cuda_agent.core.graph import Graph, base_name
from cuda_agent.workers.inside.graph.fxgraph import GraphBuilder, refused
from cuda_agent.workers.inside.graph.operators import kept
from cuda_agent.workers.inside.task.taskmodule import (
    TaskModule,
    fixed_values,
    forward_defaults,
    forward_parameters,
    init_signature,
)
from cuda_agent.workers.inside.task.weights import state_metas


def capture(model: Any, inputs: list[Any], module: TaskModule) -> Graph:
    """Returns the graph of `model(*inputs)` with static shapes. `model` is in eval mode; neither it nor `inputs`
    change.

    Raises TaskError for data-dependent shapes or control flow, changing buffers, and anything else that ATen doesn't
    express.
    """
    program = _export(model, inputs, module.Model.forward.__code__.co_filename)
    builder = GraphBuilder(program, model, inputs)
    builder.run()
    return Graph(
        inputs=tuple(builder.inputs),
        nodes=tuple(builder.nodes),
        outputs=tuple(builder.outputs),
        output_spec=json.dumps(builder.output_spec),
        init_signature=init_signature(module.Model),
        forward_parameters=forward_parameters(module.Model),
        forward_defaults=forward_defaults(module.Model),
        fixed=fixed_values(module.Model, inputs),
        state=state_metas(model),
        state_parameters=tuple(name for name, _ in model.named_parameters(remove_duplicate=False)),
    )


def warm_up() -> None:
    """Makes torch import what an export needs, with a module of its own. It takes seconds and needs no device."""
    _export(torch.nn.ReLU(), [torch.zeros(1)], "")


def _export(model: Any, inputs: list[Any], task_file: str) -> Any:
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(model, tuple(inputs), strict=False)
            table, whole = torch.export.default_decompositions(), kept()
            table = {op: rule for op, rule in table.items() if base_name(str(op)) not in whole}
            return program.run_decompositions(table)
    except Exception as error:  # noqa: BLE001 - the boundary to task code and to the tracer, which raises all kinds
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f"{frame.lineno}: {frame.line}" for frame in frames if frame.filename == task_file]
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise refused(first[:300], lines[-1] if lines else "") from None
