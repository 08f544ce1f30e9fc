"""Prints the graph of a task file as the playbook gets it: `.venv/bin/python scripts/show_graph.py TASK.py`.

It runs the task's code in this process.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cuda_agent.core.errors import CudaAgentError
from cuda_agent.core.graph import Arg, DtypeArg, Graph, NonFinite, Ref, TensorMeta
from cuda_agent.workers.buffers import contiguous
from cuda_agent.workers.inside.graph.capture import capture
from cuda_agent.workers.inside.task.taskmodule import load_task_module, make_init_inputs, make_inputs, make_model


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
    strides = "" if meta == contiguous(meta) else f" strides {list(meta.strides)}"
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
    """Prints the graph of a task file."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python scripts/show_graph.py TASK.py\n")
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
