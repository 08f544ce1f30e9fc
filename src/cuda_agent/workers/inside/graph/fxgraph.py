"""Converts an exported program's nodes to records of `core.graph`, in the few forms that `capture` promises."""

from __future__ import annotations

import math
import operator
import re
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from cuda_agent.core.errors import TaskError
from cuda_agent.core.graph import (
    Arg,
    DtypeArg,
    GraphInput,
    Node,
    NonFinite,
    Ref,
    TensorMeta,
    ValueKind,
    base_name,
    refs,
)
from cuda_agent.workers.inside.task.pytree import Spec, dtype_name, flatten, leaves, tensor_meta

#: larger constants carry no values, and operators that need them aren't covered.
MAX_CONSTANT = 4096
MAX_NODES = 20000

_DROPPED_ARGUMENTS = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"})
_SAME_VALUE = frozenset(
    {"clone", "detach", "detach_", "alias", "lift_fresh", "lift_fresh_copy", "contiguous", "dropout"}
)
_CASTS = frozenset({"_to_copy", "to", "type_as"})
_VIEWS = frozenset({"_unsafe_view", "reshape", "_reshape_alias", "view_copy", "_reshape_copy"})
_NO_VALUE = frozenset({"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range", "_print"})
#: a frame of a stack trace that torch keeps at each node.
_FRAME = re.compile(r'File "([^"]*)", line (\d+), in \w+\n *([^\n]*)')
_TORCH = str(Path(torch.__file__).parent)
_RENAMED = {"_native_batch_norm_legit_no_training": "aten.batch_norm.default"}


def refused(why: str, line: str = "") -> TaskError:
    """Returns the error for a module that has no graph. `line` is the task's line that is in the way."""
    return TaskError(
        f"line {line} can't be captured: {why}" if line else f"can't be captured: {why}",
        "Write forward with static shapes and without data-dependent branches, or replace what can be captured and "
        "leave the rest in PyTorch: cuda-agent optimize TASK.py --parts",
    )


class GraphBuilder:
    """Builds a graph in one pass over an exported program's nodes."""

    def __init__(self, program: Any, model: Any, inputs: list[Any]) -> None:
        self.program = program
        self.model = model
        described = enumerate(leaves(flatten(inputs)[0]))
        self.positions = (index for index, (_, leaf) in described if "t" in leaf)
        self.inputs: list[GraphInput] = []
        self.nodes: list[Node] = []
        self.outputs: list[str] = []
        self.output_spec: Spec = {}
        self.names: dict[Any, str] = {}
        self.metas: dict[str, TensorMeta] = {}
        self.constants: dict[str, Any] = {}
        self.constant_targets: dict[str, str] = {}
        self.seen: dict[str, str] = {}

    def run(self) -> None:
        graph = self.program.graph
        if len(graph.nodes) > MAX_NODES:
            raise refused(f"more than {MAX_NODES} operators")
        graph.eliminate_dead_code()
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        for node, spec in zip(placeholders, self.program.graph_signature.input_specs, strict=True):
            self._placeholder(node, spec)
        for node in graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "get_attr" and node.users:
                raise refused(f"a nested graph ({node.target})")
        self._finish(next(node for node in graph.nodes if node.op == "output"))
        self._add_used_constants()

    def _placeholder(self, node: Any, spec: Any) -> None:
        if spec.kind is InputKind.USER_INPUT:
            if isinstance(spec.arg, ConstantArgument):
                return
            self._input(node, ValueKind.INPUT, position=next(self.positions))
        elif not node.users:
            return
        elif spec.kind is InputKind.PARAMETER:
            self._input(node, ValueKind.PARAMETER, target=spec.target)
        elif spec.kind is InputKind.BUFFER and spec.persistent:
            self._input(node, ValueKind.BUFFER, target=spec.target)
        elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            value = self.program.constants.get(spec.target)
            if value is None:
                value = self.program.state_dict[spec.target]
            if _fits(value):
                self.constant_targets[node.name] = spec.target
                self._constant(node, value.detach().cpu())
            else:
                self._input(node, ValueKind.CONSTANT, target=spec.target)
        else:
            # A token stands for the order of operators that do more than return a value.
            user = next(iter(node.users), node)
            operators = [str(arg) for arg in user.args if isinstance(arg, torch._ops.OpOverload)]
            raise refused(f"{', '.join(operators) or spec.kind.name.lower()} may raise or print", line_of(user))

    def _input(self, node: Any, kind: ValueKind, *, position: int | None = None, target: str | None = None) -> None:
        meta = self._meta(node.meta["val"], node)
        self.names[node] = node.name
        self.metas[node.name] = meta
        self.inputs.append(GraphInput(name=node.name, kind=kind, meta=meta, position=position, target=target))

    def _constant(self, node: Any, value: Any) -> None:
        self.names[node] = node.name
        self.metas[node.name] = tensor_meta(value)
        self.constants[node.name] = value

    def _add_used_constants(self) -> None:
        used = set(self.outputs)
        for node in self.nodes:
            used.update(refs((*node.args, *node.kwargs.values())))
        for name, value in self.constants.items():
            if name in used:
                flat = tuple(float(v) for v in value.flatten().tolist())
                self.inputs.append(
                    GraphInput(
                        name=name,
                        kind=ValueKind.CONSTANT,
                        meta=tensor_meta(value.contiguous()),
                        target=self.constant_targets.get(name),
                        values=flat,
                    )
                )

    # ------------------------------------------------------------ operators

    def _call(self, node: Any) -> None:
        if node.target is operator.getitem:
            return self._getitem(node)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise refused(f"the operator {getattr(node.target, '__name__', node.target)}", line_of(node))
        base = base_name(str(node.target))
        if base in _NO_VALUE:
            return
        outputs = self._metas_of(node, base)
        if self._same_value(node, base) or self._folded(node):
            return
        op, args, kwargs = self._normal(node, base)
        self._add(node, op, args, kwargs, outputs)

    def _add(self, node: Any, op: str, args: Any, kwargs: Any, outputs: tuple[TensorMeta | None, ...]) -> None:
        key = f"{op}{args!r}{sorted(kwargs.items())!r}"
        random = (
            isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
        )
        if key in self.seen and not random:
            self.names[node] = self.seen[key]
            return
        self.seen[key] = self.names[node] = node.name
        if len(outputs) == 1 and outputs[0] is not None:
            self.metas[node.name] = outputs[0]
        made = Node(name=node.name, op=op, args=tuple(args), kwargs=kwargs, outputs=outputs, line=line_of(node))
        self.nodes.append(made)

    def _getitem(self, node: Any) -> None:
        source, index = node.args
        if base_name(str(source.target)) in _RENAMED:
            self.names[node] = self.names[source]
            return
        meta = self._meta(node.meta["val"], node)
        self._add(node, "getitem", (Ref(ref=self.names[source]), int(index)), {}, (meta,))

    def _same_value(self, node: Any, base: str) -> bool:
        """Whether an operator changes neither value, type nor strides, so that its result is its operand."""
        if base not in _SAME_VALUE and base not in _CASTS:
            return False
        if base == "dropout" and node.args[2]:
            return False
        source = node.args[0]
        name = self.names.get(source)
        if name is None or self._meta(node.meta["val"], node) != self._meta(source.meta["val"], source):
            return False
        self.names[node] = name
        return True

    def _normal(self, node: Any, base: str) -> tuple[str, list[Arg], dict[str, Arg]]:
        """Returns (operator, arguments) in the few forms that `capture`'s docstring promises."""
        if base in _CASTS and node.args[0].meta["val"].dtype is not node.meta["val"].dtype:
            dtype = DtypeArg(dtype=dtype_name(node.meta["val"].dtype))
            return "aten._to_copy.default", [self._arg(node.args[0])], {"dtype": dtype}
        if base in _CASTS or (base in _SAME_VALUE and base != "dropout"):
            return "aten.clone.default", [self._arg(node.args[0])], {}
        if base in _VIEWS:
            return "aten.view.default", [self._arg(node.args[0]), list(node.meta["val"].shape)], {}
        kwargs = {key: self._arg(value) for key, value in node.kwargs.items() if key not in _DROPPED_ARGUMENTS}
        args = [self._arg(value) for value in node.args]
        if base in _RENAMED:
            x, weight, bias, mean, var, momentum, eps = args
            return _RENAMED[base], [x, weight, bias, mean, var, False, momentum, eps, False], {}
        return str(node.target), args, kwargs

    def _metas_of(self, node: Any, base: str) -> tuple[TensorMeta | None, ...]:
        value = node.meta.get("val")
        if base in _RENAMED:
            return (self._meta(value[0], node),)
        if isinstance(value, (list, tuple)):
            return tuple(self._meta(v, node) if isinstance(v, torch.Tensor) else None for v in value)
        return (self._meta(value, node),)

    def _meta(self, value: Any, node: Any) -> TensorMeta:
        """Returns the meta of a node's result. Raises TaskError where it isn't known before the call."""
        if not isinstance(value, torch.Tensor):
            raise refused(f"{node.target} takes a number out of a tensor", line_of(node))
        if not all(isinstance(size, int) for size in value.shape):
            raise refused(f"{node.target} has a shape that depends on values", line_of(node))
        return tensor_meta(value)

    def _arg(self, value: Any) -> Arg:
        if isinstance(value, torch.fx.Node):
            if value not in self.names:
                raise refused(f"the value {value.name} is no tensor")
            return Ref(ref=self.names[value])
        if isinstance(value, (list, tuple)):
            return [self._arg(item) for item in value]
        if isinstance(value, torch.dtype):
            return DtypeArg(dtype=dtype_name(value))
        if isinstance(value, float) and not math.isfinite(value):
            return NonFinite(nonfinite=str(value))
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, (torch.memory_format, torch.device, torch.layout)):
            return None
        raise refused(f"an argument of type {type(value).__name__}")

    # ------------------------------------------------------------ constants and outputs

    def _folded(self, node: Any) -> bool:
        """Computes a value that depends on small constants only, which is a constant again."""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.numel() > MAX_CONSTANT:
            return False
        if torch.Tag.nondeterministic_seeded in node.target.tags or base_name(str(node.target)).startswith("empty"):
            return False
        if any(self.names.get(source) not in self.constants for source in node.all_input_nodes):
            return False
        args = torch.fx.map_arg(node.args, lambda n: self.constants[self.names[n]])
        kwargs = torch.fx.map_arg(node.kwargs, lambda n: self.constants[self.names[n]])
        kwargs = {key: torch.device("cpu") if key == "device" else item for key, item in kwargs.items()}
        try:
            result = node.target(*args, **kwargs)
        except (RuntimeError, TypeError):
            # An operator of another device or of fake tensors only stays in the graph.
            return False
        if _fits(result):
            self._constant(node, result)
        return _fits(result)

    def _finish(self, output: Any) -> None:
        leaves: list[Any] = []
        by_identity: dict[int, str] = {}
        for value, spec in zip(output.args[0], self.program.graph_signature.output_specs, strict=True):
            if spec.kind is OutputKind.BUFFER_MUTATION:
                raise refused(f"forward changes the buffer {spec.target}")
            if spec.kind is not OutputKind.USER_OUTPUT:
                continue
            if isinstance(value, torch.fx.Node):
                leaf = torch.empty(0)
                by_identity[id(leaf)] = self.names[value]
                leaves.append(leaf)
            else:
                leaves.append(value)
        whole = torch.utils._pytree.tree_unflatten(leaves, self.program.call_spec.out_spec)
        self.output_spec, tensors = flatten(whole)
        self.outputs = [by_identity[id(tensor)] for tensor in tensors]
        if not self.outputs:
            raise refused("forward returns no tensor")


def line_of(node: Any) -> str:
    """Returns the task's line that made a node of an exported program, empty where none is known."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    found = [f"{line}: {text.strip()}" for path, line, text in frames if not path.startswith(_TORCH)]
    return found[-1] if found else ""


def _fits(value: Any) -> bool:
    """Whether a constant is small and its values are exact as Python floats."""
    if value.numel() > MAX_CONSTANT or value.is_complex():
        return False
    return value.dtype is not torch.int64 or not value.numel() or int(value.abs().max()) <= 2**53
