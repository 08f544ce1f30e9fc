"""Where a convolution applies and the step that computes it."""

from importlib import resources

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Graph, Node, TensorMeta
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import render
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, Claim, Options, PlanState, Skill, Step, StridedView, pointer
from cuda_agent.playbook.skills.shared.geometry import Convolution, read
from cuda_agent.playbook.skills.shared.operands import (
    buffers,
    collapsed,
    library_graph_files,
    only_reader,
    readable_windows,
    windows,
)

_TYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
_FILES = ("convolution.cu", "convolution_layout.cuh", "convolution_plan.h", "convolution_legacy.h")
#: the library's own choice, eight engines in two layouts, the older interface.
CONFIGS = 18
#: the first engine that runs, eight engines.
LAST_CONFIGS = 9

DECLARATION = (
    'extern "C" int convolution_workspace(const long long* geometry, int config, long long* bytes);\n'
    'extern "C" int launch_convolution(void* y, const void* x, const void* w, const void* bias, '
    "const long long* geometry, void* workspace, int config, cudaStream_t stream);"
)


def _is_plain(view: StridedView, width: int) -> bool:
    """Returns whether the value lies row-major from an address that is a multiple of 16 bytes."""
    pairs = collapsed(view.shape, view.strides)
    return (not pairs or (len(pairs) == 1 and pairs[0][1] == 1)) and view.offset * width % 16 == 0


def geometry_numbers(call: Convolution, precision: Precision, relu: bool, last: bool = False) -> list[int]:
    """Returns the numbers that the launcher takes. One spatial dimension becomes two, the first of size 1."""
    axes = [(a.size, a.result, a.filter, a.before, a.after, a.stride, a.dilation) for a in call.axes]
    if len(axes) == 1:
        axes.insert(0, (1, 1, 1, 0, 0, 1, 1))
    head = [len(axes), call.batch, call.in_channels, call.out_channels, call.groups, int(call.transposed)]
    head += [_TYPES[call.result.dtype], int(precision is not Precision.FP32), int(relu), int(last)]
    return head + [number for axis in axes for number in axis]


def _cuda_step(state: PlanState, node: Node, call: Convolution, names: list[str]) -> Claim:
    width = 4 if call.result.dtype == "float32" else 2
    views = readable_windows(state, names, lambda view: _is_plain(view, width))
    after = only_reader(state, node.name)
    relu = after is not None and after.op == "aten.relu.default"
    result = after.name if after is not None and relu else node.name
    numbers = geometry_numbers(call, state.precision, relu)
    buffer = Buffer(result, ir.contiguous_meta(call.result.shape, call.result.dtype))
    return Claim(_launch(node, numbers, views, width, buffer, CONFIGS), frozenset({node.name, result}))


def reads_channels_last(call: Convolution) -> bool:
    """Returns whether cuDNN's engines for channels-last tensors take the call without padded channels."""
    multiple = 4 if call.result.dtype == "float32" else 8
    batched = len(call.result.shape) == len(call.axes) + 2
    return batched and call.groups == 1 and call.in_channels % multiple == 0 and call.out_channels % multiple == 0


def _last_step(state: PlanState, node: Node, call: Convolution) -> Claim | None:
    """The call on tensors whose channels are innermost. Its result has such a buffer too, which whatever reads the
    node's value reads; a bias is left to these."""
    views = [state.placed(name, ir.channels_last(state.meta(name).shape)) for name in (call.x, call.weight)]
    found = [view for view in views if view is not None]
    if len(found) != len(views):
        return None
    shape, dtype = call.result.shape, call.result.dtype
    raw = state.fresh(f"{cpp_name(node.name)}_last")
    buffer = Buffer(raw, TensorMeta(shape=shape, dtype=dtype, strides=ir.channels_last(shape)))
    numbers = geometry_numbers(call, state.precision, False, last=True)

    def define() -> None:
        builder = state.builder
        if call.bias is None:
            builder.pointwise("copy", raw, dtype=dtype, name=node.name)
        else:
            bias = builder.reshape(builder.resolve(call.bias), (call.out_channels, *[1] * len(call.axes)))
            builder.pointwise("add", raw, bias, dtype=dtype, name=node.name)

    width = 4 if dtype == "float32" else 2
    return Claim(_launch(node, numbers, found, width, buffer, LAST_CONFIGS), frozenset({node.name}), then=define)


def _launch(node: Node, numbers: list[int], views: list[StridedView], width: int, buffer: Buffer, configs: int) -> Step:
    """Returns the step that calls the library on x, weight and, where there is one, bias."""
    name, out = f"convolution_{cpp_name(node.name)}", cpp_name(buffer.name)
    tunable = "convolution_" + "_".join(str(number) for number in numbers[1:6] + numbers[9:])
    operands = [*(pointer(view, width) for view in views), *["nullptr"] * (3 - len(views))]
    values = {"name": name, "out": out, "numbers": numbers, "operands": operands, "config": f"config_{tunable}"}
    package = resources.files(__package__)
    return Step(
        name=name,
        inputs=buffers(views),
        outputs=(buffer,),
        files={f"kernels/{file}": package.joinpath(file).read_text() for file in _FILES} | library_graph_files(),
        declaration=DECLARATION,
        call=render("convolution/cuda.cpp.j2", values).rstrip(),
        tunables={tunable: configs},
    )


def _cpu_step(node: Node, call: Convolution, views: list[StridedView]) -> Claim | None:
    """torch's own convolution into the result. Its gradient-free `convolution` allocates, `convolution_out`
    doesn't."""
    if any(axis.before != axis.after for axis in call.axes):
        return None
    batched = len(call.result.shape) == len(call.axes) + 2
    # Where all lies in order, torch's own result needs no copy: it keeps the plain order of its input.
    in_order = all(_is_plain(view, 16) for view in views)
    values = {"call": call, "views": views, "out": cpp_name(node.name), "batched": batched, "in_order": in_order}
    step = Step(
        name=f"convolution_{cpp_name(node.name)}",
        inputs=buffers(views),
        outputs=(Buffer(node.name, ir.contiguous_meta(call.result.shape, call.result.dtype)),),
        call=render("convolution/cpu.cpp.j2", values).rstrip(),
        includes=("<ATen/ATen.h>",),
    )
    return Claim(step, frozenset({node.name}))


class ConvolutionSkill(Skill):
    """Convolutions and transposed convolutions in one to three dimensions, grouped ones included; channels that are
    convolved by themselves with few taps are left to the planner's kernels (skill stencil)."""

    def claim(self, state: PlanState, node: Node) -> Claim | None:
        """The step for a convolution, on cuda with a ReLU behind it. None for anything else. Puts operands into
        memory that aren't there yet."""
        call = read(state, node)
        if call is None or call.is_stencil:
            return None
        if state.options.channels_last and state.device is Device.CUDA and reads_channels_last(call):
            claim = _last_step(state, node, call)
            if claim is not None:
                return claim
        names = [name for name in (call.x, call.weight, call.bias) if name is not None]
        if state.device is Device.CUDA:
            return _cuda_step(state, node, call, names)
        return _cpu_step(node, call, windows(state, names))

    def other_options(self, graph: Graph, device: Device, used: bool) -> Options | None:
        return Options(channels_last=True) if used and device is Device.CUDA else None


SKILL = ConvolutionSkill
