"""Where a recurrent layer runs through its steps in one launch, and the step that does it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import resources

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import Node, Ref
from cuda_agent.playbook.codegen import header
from cuda_agent.playbook.plan import Buffer, Claim, PlanState, Step, StridedView, cpp_name, pointer
from cuda_agent.playbook.skills.gemm.operands import NotAMatrix, collapsed, contiguous_meta, plain_copy, windows

#: the kernels' number of a layer, and its gates.
KINDS = {"recurrent.lstm": (0, 4), "recurrent.gru": (1, 3), "recurrent.tanh": (2, 1), "recurrent.relu": (3, 1)}
CONFIGS = 6
#: registers of a lane that hold weights, in fours.
_MOST_QUADS = 32
#: of the kernel's counters.
_GROUPS = 1024


@dataclass(frozen=True)
class Layer:
    """`given` [steps, batch, ·] or, `batch_first`, [batch, steps, ·]; the values are those of the node."""

    kind: int
    gates: int
    given: str
    weights: str
    bias: str | None
    first: str | None
    first_cell: str | None
    steps: int
    batch: int
    directions: int
    hidden: int
    batch_first: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """Steps, batch, directions; distances of steps and rows in what is given, and in the states."""
        given, out = self.directions * self.gates * self.hidden, self.directions * self.hidden
        apart = [(width, self.steps * width) if self.batch_first else (self.batch * width, width)
                 for width in (given, out)]  # fmt: skip
        return (self.steps, self.batch, self.directions, *apart[0], *apart[1])


def read(state: PlanState, node: Node) -> Layer | None:
    """What a node computes; None for others, and on cuda for weights that a warp's registers can't hold."""
    if node.op not in KINDS:
        return None
    kind, gates = KINDS[node.op]
    given, weights, bias, first, first_cell = (arg.ref if isinstance(arg, Ref) else None for arg in node.args[:5])
    directions, batch_first = int(str(node.args[5])), bool(node.args[6])
    assert given is not None and weights is not None
    lead, hidden = state.meta(given).shape[:2], state.meta(weights).shape[1]
    steps, batch = lead[::-1] if batch_first else lead
    if state.device is Device.CUDA and gates * -(-hidden // 128) > _MOST_QUADS:
        return None
    return Layer(
        kind, gates, given, weights, bias, first, first_cell,
        steps=steps, batch=batch, directions=directions, hidden=hidden, batch_first=batch_first,
    )  # fmt: skip


def _whole(state: PlanState, name: str | None) -> StridedView | None:
    """Where a value lies in one piece. Raises NotAMatrix."""
    if name is None:
        return None
    (view,) = windows(state, [name])
    pairs = collapsed(view.shape, view.strides)
    return (
        view
        if not pairs or (len(pairs) == 1 and pairs[0][1] == 1 and view.offset % 4 == 0)
        else plain_copy(state, name)
    )


class Recurrent:
    """A layer of an LSTM, a GRU or a plain recurrent network in float32, one or both directions."""

    name = "recurrent"

    def claim(self, state: PlanState, node: Node) -> Claim | None:
        """The step for a layer that the algebra made; None for anything else."""
        layer = read(state, node)
        if layer is None:
            return None
        names = (layer.given, layer.weights, layer.bias, layer.first, layer.first_cell)
        try:
            views = [_whole(state, name) for name in names]
        except NotAMatrix:
            return None
        picked = {user.args[1]: user.name for user in state.users(node.name) if user.op == "getitem"}
        results = [picked.get(at) or state.fresh(f"{cpp_name(node.name)}_{at}") for at in range(len(node.outputs))]
        step = self._step(state, node, layer, views, results)
        return Claim(step, frozenset({node.name, *picked.values()}))

    def _step(
        self, state: PlanState, node: Node, layer: Layer, views: list[StridedView | None], results: list[str]
    ) -> Step:
        cuda = state.device is Device.CUDA
        name = f"recurrent_{cpp_name(node.name)}"
        metas = [contiguous_meta(meta.shape, meta.dtype) for meta in node.outputs if meta is not None]
        tunable = f"recurrent_{layer.steps}x{layer.batch}x{layer.hidden}_{layer.gates * layer.directions}"
        outputs = tuple(Buffer(one, meta) for one, meta in zip(results, metas, strict=True))
        if cuda:
            scratch = Buffer(state.fresh(f"{name}_arrived"), contiguous_meta((_GROUPS,), "int32"))
            stem = f"recurrent_{layer.kind}_{layer.hidden}"
            files = {f"kernels/{stem}.cu": kernel(layer.kind, layer.hidden), **header(state.device)}
            declaration, call = _on_cuda(layer, views, results, scratch.name, stem, tunable, name)
        else:
            width = layer.gates * layer.hidden
            scratch = Buffer(state.fresh(f"{name}_gates"), contiguous_meta((layer.batch, width), "float32"))
            text = resources.files(__package__).joinpath("recurrent.cpp").read_text()
            files = {"kernels/recurrent.cpp": text, **header(state.device)}
            declaration, call = _CPU_DECLARATION, _on_cpu(layer, views, results, scratch.name)
        return Step(
            skill="recurrent",
            name=name,
            inputs=tuple(dict.fromkeys(view.buffer for view in views if view is not None)),
            outputs=outputs,
            files=files,
            declaration=declaration,
            call=call,
            tunables={tunable: CONFIGS} if cuda else {},
            scratch=(scratch,),
            includes=() if cuda else ("<ATen/ATen.h>", "<string.h>"),
        )


def kernel(kind: int, hidden: int) -> str:
    """The source for layers of this kind and width."""
    text = resources.files(__package__).joinpath("recurrent.cu").read_text()
    text = text.replace("#define KIND 0", f"#define KIND {kind}").replace(
        "#define HIDDEN 256", f"#define HIDDEN {hidden}"
    )
    return text.replace("int launch_recurrent(", f"int launch_recurrent_{kind}_{hidden}(")


def _at(view: StridedView | None) -> str:
    return "nullptr" if view is None else pointer(view.buffer, view.offset, 4)


def _on_cuda(
    layer: Layer, views: list[StridedView | None], results: list[str], scratch: str, stem: str, tunable: str, name: str
) -> tuple[str, str]:
    places = [f"{cpp_name(one)}.data_ptr()" for one in results]
    arguments = [*places, *["nullptr"] * (3 - len(places)), *map(_at, views), f"{cpp_name(scratch)}.data_ptr()"]
    lines = [
        f"static const long long sizes[] = {{{', '.join(map(str, layer.sizes))}}};",
        f"const int status = launch_{stem}({', '.join(arguments)}, sizes, config_{tunable}, stream);",
        f'TORCH_CHECK(status == 0, "{name}: status ", status);',
    ]
    declaration = (
        f'extern "C" int launch_{stem}(void* out, void* last, void* cell, const void* given, const void* weights, '
        "const void* bias, const void* first, const void* first_cell, void* arrived, const long long* sizes, "
        "int config, cudaStream_t stream);"
    )
    return declaration, "\n".join(["{", *(f"  {line}" for line in lines), "}"])


_CPU_DECLARATION = (
    'extern "C" void launch_recurrent_cell(int kind, float* out, float* cell, float* last, const float* gates, '
    "const float* given, const float* bias, const float* before, const float* cell_before, long batch, long hidden, "
    "long out_row, long given_row, long before_row);"
)


def _on_cpu(layer: Layer, views: list[StridedView | None], results: list[str], scratch: str) -> str:
    """The products by torch's library, the rest by a kernel of ours, step by step."""
    _, _, directions, given_step, given_row, out_step, out_row = layer.sizes
    hidden, width, batch = layer.hidden, layer.gates * layer.hidden, layer.batch
    given, weights, bias, first, first_cell = views
    assert weights is not None
    gates, state = cpp_name(scratch), math.prod((batch, hidden))
    out, last, *cells = (f"static_cast<float*>({cpp_name(one)}.data_ptr())" for one in results)

    def read(view: StridedView | None, offset: str) -> str:
        if view is None:
            return "nullptr"
        return f"static_cast<const float*>({cpp_name(view.buffer)}.data_ptr()) + {view.offset} + {offset}"

    def states(buffer: str, offset: str, row: int) -> str:
        return f"{cpp_name(buffer)}.as_strided({{{batch}, {hidden}}}, {{{row}, 1}}, {offset})"

    start = f"{weights.offset} + d * {width * hidden}"
    matrix = f"{cpp_name(weights.buffer)}.as_strided({{{hidden}, {width}}}, {{1, {hidden}}}, {start})"
    before = states(results[0], f"before * {out_step} + d * {hidden}", out_row)
    if first is None:
        begin = f"memset({gates}.data_ptr(), 0, {batch * width * 4})"
    else:
        begin = f"at::mm_out({gates}, {states(first.buffer, f'{first.offset} + d * {state}', hidden)}, {matrix})"
    cell = f"{cells[0]} + d * {state}" if cells else "nullptr"
    lines = [
        f"for (int64_t d = 0; d < {directions}; ++d) for (int64_t step = 0; step < {layer.steps}; ++step) {{",
        f"  const int64_t time = d ? {layer.steps - 1} - step : step, before = d ? time + 1 : time - 1;",
        f"  float* const out = {out} + d * {hidden};",
        f"  float* const cell = {cell};",
        f"  if (step) at::mm_out({gates}, {before}, {matrix});",
        f"  else {begin};",
        f"  launch_recurrent_cell({layer.kind}, out + time * {out_step}, cell,",
        f"      step == {layer.steps - 1} ? {last} + d * {state} : nullptr,",
        f"      static_cast<const float*>({gates}.data_ptr()), {read(given, f'time * {given_step} + d * {width}')},",
        f"      {read(bias, f'd * {width}')},",
        f"      step ? out + before * {out_step} : {read(first, f'd * {state}')},",
        f"      step ? cell : {read(first_cell, f'd * {state}')}, {batch}, {hidden}, {out_row}, {given_row},",
        f"      step ? {out_row} : {hidden});",
        "}",
    ]  # fmt: skip
    return "\n".join(lines)


SKILL = Recurrent()
