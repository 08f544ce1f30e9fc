"""The single-file form of a candidate: one kernel file with one launcher, `launch`, whose signature follows from the
captured graph. The binding and `model_new.py` are made, so a model writes only the kernel."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from cuda_agent.core.enums import Device
from cuda_agent.core.errors import NotCovered
from cuda_agent.core.graph import Graph, GraphInput, TensorMeta, ValueKind
from cuda_agent.playbook import emit, ir
from cuda_agent.playbook.draws import with_drawn_inputs
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, Step

LAUNCHER = "launch"
#: dtype -> type in C. A CPU has no types of 16 bits; a number of such a type stands there as its bits.
_TYPES = {
    "float32": "float", "float64": "double", "int64": "int64_t", "int32": "int32_t", "int16": "int16_t",
    "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip
_HALF = {
    Device.CUDA: {"bfloat16": "__nv_bfloat16", "float16": "__half"},
    Device.CPU: {"bfloat16": "uint16_t", "float16": "uint16_t"},
}
_INCLUDES = {
    Device.CUDA: ("cuda_bf16.h", "cuda_fp16.h", "cuda_runtime.h", "math.h", "stdint.h"),
    Device.CPU: ("algorithm", "cmath", "cstdint", "cstring", "vector"),
}
#: parameters of the launcher that no tensor may be called.
_OWN = frozenset({"stream", LAUNCHER})


@dataclass(frozen=True)
class LauncherArgument:
    """A tensor as a parameter of the launcher. `value` is its name in the graph, `type` in C."""

    name: str
    type: str
    meta: TensorMeta
    value: str
    is_result: bool = False

    @property
    def declaration(self) -> str:
        return f"{'' if self.is_result else 'const '}{self.type}* {self.name}"

    @property
    def description(self) -> str:
        """One line: name, type if it isn't float32, shape, and strides where they aren't row-major."""
        meta = self.meta
        typed = "" if meta.dtype == "float32" else f"{meta.dtype} "
        strided = "" if meta.strides == ir.contiguous(meta.shape) else f", strides {list(meta.strides)}"
        counted = f", {math.prod(meta.shape)} elements" if len(meta.shape) != 1 else ""
        return f"{self.name}: {typed}{list(meta.shape)}{strided}{counted}"


@dataclass(frozen=True)
class SingleFile:
    """The form for one graph on one device."""

    graph: Graph
    device: Device
    arguments: tuple[LauncherArgument, ...]

    @classmethod
    def of(cls, graph: Graph, device: Device) -> Self:
        """Raises NotCovered for a tensor of another type, and where `forward` takes nested tensors."""
        graph = with_drawn_inputs(graph)
        return cls(graph, device, tuple(_arguments(graph, device)))

    @property
    def path(self) -> str:
        """The kernel's file."""
        return f"kernels/kernel.{'cu' if self.device is Device.CUDA else 'cpp'}"

    @property
    def declaration(self) -> str:
        """The launcher's declaration. Before the model's text it has C linkage."""
        parts = [argument.declaration for argument in self.arguments]
        parts += ["cudaStream_t stream"] if self.device is Device.CUDA else []
        return f"void {LAUNCHER}({', '.join(parts)});"

    @property
    def opening(self) -> str:
        """The lines before the model's text: headers and the declaration, with which a definition must agree."""
        return "".join(
            [*(f"#include <{name}>\n" for name in _INCLUDES[self.device]), f'\nextern "C" {self.declaration}\n\n']
        )

    def candidate(self, text: str, graph: Graph) -> dict[str, str]:
        """Returns the files of the candidate with this text of the kernel. `graph` is the one that was captured."""
        outputs = tuple(Buffer(one.value, one.meta) for one in self.arguments if one.is_result)
        given = tuple((one.value, one.meta) for one in self.arguments if not one.is_result)
        call = ", ".join(
            [f"{cpp_name(one.value)}.data_ptr()" for one in self.arguments]
            + ["stream"] * (self.device is Device.CUDA)
        )  # fmt: skip
        untyped = [f"{'' if one.is_result else 'const '}void* {one.name}" for one in self.arguments]
        untyped += ["cudaStream_t stream"] if self.device is Device.CUDA else []
        lines = [f"{LAUNCHER}({call});"]
        if self.device is Device.CUDA:
            lines.append(f'check_status("{LAUNCHER}", static_cast<int>(cudaGetLastError()));')
        step = Step(
            name=LAUNCHER,
            inputs=tuple(name for name, _ in given),
            outputs=outputs,
            call="\n".join(lines),
            files={self.path: f"{self.opening}{text.rstrip()}\n"},
            declaration=f'extern "C" void {LAUNCHER}({", ".join(untyped)});',
        )
        stage = emit.Stage(emit.FORWARD, (step,), given, tuple(buffer.name for buffer in outputs))
        inputs: Mapping[str, GraphInput] = {item.name: item for item in self.graph.inputs}
        return emit.files(graph, [stage], inputs, self.device)


def _arguments(graph: Graph, device: Device) -> Iterator[LauncherArgument]:
    types = _TYPES | _HALF[device]
    taken: set[str] = set(_OWN)

    def argument(name: str, value: str, meta: TensorMeta, is_result: bool) -> LauncherArgument:
        if meta.dtype not in types:
            raise NotCovered(f"{name} has the type {meta.dtype}, which kernels don't take", "Use another form")
        name = cpp_name(name.replace(".", "_"))
        while name in taken:
            name += "_"
        taken.add(name)
        return LauncherArgument(name, types[meta.dtype], meta, value, is_result)

    # What `forward` gets comes first, then weights, then results.
    for item in sorted(graph.inputs, key=lambda item: item.kind is not ValueKind.INPUT):
        yield argument(_plain_name(graph, item), item.name, item.meta, False)
    metas = {item.name: item.meta for item in graph.inputs}
    metas |= {node.name: node.outputs[0] for node in graph.nodes if node.outputs and node.outputs[0] is not None}
    single, values = len(graph.outputs) == 1, {item.name for item in graph.inputs}
    for index, output in enumerate(graph.outputs):
        name = "out" if single else f"out{index}"
        value = name
        while value in values:
            value += "_"
        yield argument(name, value, metas[output], True)


def _plain_name(graph: Graph, item: GraphInput) -> str:
    """Returns the name that a task's author would know a value by."""
    if item.kind is not ValueKind.INPUT:
        return item.target or item.name
    if item.position is None or item.position >= len(graph.forward_parameters):
        raise NotCovered(f"Input {item.name} is nested", "Pass tensors as plain arguments of forward")
    return graph.forward_parameters[item.position]
