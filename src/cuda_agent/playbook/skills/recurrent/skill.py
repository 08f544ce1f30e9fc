"""Runs a recurrent layer through its steps: in one launch, or with a matrix product for each step."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import Node, Ref, TensorMeta
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import kernel_files
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, Claim, PlanState, Skill, Step, pointer
from cuda_agent.playbook.skills.shared.operands import MATH, buffers, checked_call, one_piece, product_files

#: the kernels' number of a layer, and its gates.
KINDS = {"recurrent.lstm": (0, 4), "recurrent.gru": (1, 3), "recurrent.tanh": (2, 1), "recurrent.relu": (3, 1)}
#: settings of the kernel that keeps the weights, settings of a product for each step, and the least batch rows, summed
#: over directions, for which the products are an alternative.
CONFIGS, STEPWISE, _LEAST_ROWS = 6, 8, 16
#: multiplications of a step that take the kernel that keeps the weights as long as a product's launches, 10 µs: six
#: a picosecond (H100, GRU of 512 units both ways, batch 256).
_MANY_PRODUCTS = 60_000_000
#: registers of a lane that hold weights, in fours.
_MOST_QUADS = 32
#: the number of the kernel's counters.
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
    def fits(self) -> bool:
        """Whether a warp's registers hold its weights."""
        return self.gates * -(-self.hidden // 128) <= _MOST_QUADS

    @property
    def step_products(self) -> int:
        """Multiplications of a step."""
        return self.directions * self.batch * self.gates * self.hidden**2

    @property
    def sizes(self) -> tuple[int, ...]:
        """Steps, batch, directions; distances of steps and rows in what is given, and in the states; hidden units."""
        given, out = self.directions * self.gates * self.hidden, self.directions * self.hidden
        apart = [(width, self.steps * width) if self.batch_first else (self.batch * width, width)
                 for width in (given, out)]  # fmt: skip
        return (self.steps, self.batch, self.directions, *apart[0], *apart[1], self.hidden)


def read(state: PlanState, node: Node) -> Layer | None:
    """Returns the layer that a node computes, None for other operators."""
    if node.op not in KINDS:
        return None
    kind, gates = KINDS[node.op]
    given, weights, bias, first, first_cell = (arg.ref if isinstance(arg, Ref) else None for arg in node.args[:5])
    directions, batch_first = int(str(node.args[5])), bool(node.args[6])
    assert given is not None and weights is not None
    lead, hidden = state.meta(given).shape[:2], state.meta(weights).shape[1]
    steps, batch = lead[::-1] if batch_first else lead
    return Layer(
        kind, gates, given, weights, bias, first, first_cell,
        steps=steps, batch=batch, directions=directions, hidden=hidden, batch_first=batch_first,
    )  # fmt: skip


class Recurrent(Skill):
    """A layer of an LSTM, a GRU or a plain recurrent network in float32, one or both directions."""

    def claim(self, state: PlanState, node: Node) -> Claim | None:
        """Returns the step for a layer that the algebra made, None for other nodes."""
        layer = read(state, node)
        if layer is None:
            return None
        names = (layer.given, layer.weights, layer.bias, layer.first, layer.first_cell)
        views = [None if name is None else one_piece(state, name, 4) for name in names]
        picked = {user.args[1]: user.name for user in state.users(node.name) if user.op == "getitem"}
        results = [picked.get(at) or state.fresh(f"{cpp_name(node.name)}_{at}") for at in range(len(node.outputs))]
        name, launches = f"recurrent_{cpp_name(node.name)}", _launches(state, layer)
        metas = [ir.contiguous_meta(meta.shape, meta.dtype) for meta in node.outputs if meta is not None]
        tunable = f"recurrent_{layer.steps}x{layer.batch}x{layer.hidden}_{layer.gates * layer.directions}"
        places = [f"{cpp_name(one)}.data_ptr()" for one in results]
        arguments = ", ".join([*places, *["nullptr"] * (3 - len(places)), *map(pointer, views)])
        scratch = [Buffer(state.fresh(f"{name}_{one.needs}"), one.scratch) for one in launches]
        calls, before = [], 0
        for one, buffer in zip(launches, scratch, strict=True):
            config = f"config_{tunable} - {before}" if before else f"config_{tunable}"
            more = f", {one.more}{config}, stream" if one.configs else ""
            calls.append(f"{one.name}({arguments}, {cpp_name(buffer.name)}.data_ptr(), sizes{more})")
            before += one.configs
        # Where there are two ways, the settings of the first one come first.
        choice = f"config_{tunable} < {launches[0].configs} ? {' : '.join(calls)}" if len(calls) > 1 else calls[0]
        step = Step(
            name=name,
            inputs=buffers(views),
            outputs=tuple(Buffer(one, meta) for one, meta in zip(results, metas, strict=True)),
            files={path: text for one in launches for path, text in one.files.items()},
            declaration="\n".join(one.declaration for one in launches),
            call=checked_call(name, choice, sizes=layer.sizes),
            tunables={tunable: before} if before else {},
            scratch=tuple(scratch),
        )
        return Claim(step, frozenset({node.name, *picked.values()}))


def kernel(kind: int, hidden: int, device: Device) -> str:
    """Returns the source for layers of this kind and width."""
    name = "recurrent.cu" if device is Device.CUDA else "recurrent.cpp"
    text = resources.files(__package__).joinpath(name).read_text()
    for constant, usual, wanted in (("KIND", 0, kind), ("HIDDEN", 256, hidden)):
        text = text.replace(f"#define {constant} {usual}", f"#define {constant} {wanted}")
    return text.replace("int launch_recurrent(", f"int launch_recurrent_{kind}_{hidden}(")


@dataclass(frozen=True)
class _Launch:
    """One way to run through the steps. `needs` names its scratch buffer, `more` are arguments that only it takes."""

    name: str
    configs: int
    files: Mapping[str, str]
    needs: str
    scratch: TensorMeta
    more: str = ""

    @property
    def declaration(self) -> str:
        last = f"{', int math' if self.more else ''}, int config, cudaStream_t stream" if self.configs else ""
        return (
            f'extern "C" int {self.name}(void* out, void* last, void* cell, const void* given, const void* weights, '
            f"const void* bias, const void* first, const void* first_cell, void* {self.needs}, const long long* sizes"
            f"{last});"
        )


def _launches(state: PlanState, layer: Layer) -> list[_Launch]:
    """Returns the ways: weights stay in registers (in caches on the CPU), or a product is launched for each step."""
    stem, sums = f"recurrent_{layer.kind}_{layer.hidden}", layer.gates * layer.hidden
    files = kernel_files(state.device, stem, kernel(layer.kind, layer.hidden, state.device))
    if state.device is Device.CPU:
        # The weights with units by sixteens.
        packed = ir.contiguous_meta((layer.directions, -(-layer.hidden // 16) * 16, sums), "float32")
        return [_Launch(f"launch_{stem}", 0, files, "packed", packed)]
    found = []
    if layer.fits:
        found.append(_Launch(f"launch_{stem}", CONFIGS, files, "arrived", ir.contiguous_meta((_GROUPS,), "int32")))
    if not found or layer.batch * layer.directions >= _LEAST_ROWS:
        name = f"recurrent_steps_{layer.kind}"
        room = ir.contiguous_meta((layer.directions, layer.batch, sums), "float32")
        files = kernel_files(state.device, name, steps_kernel(layer.kind)) | product_files()
        math = f"{MATH[state.precision]}, "
        products = _Launch(f"launch_{name}", STEPWISE, files, "sums", room, math)
        found.insert(0 if layer.step_products >= _MANY_PRODUCTS else len(found), products)
    return found


def steps_kernel(kind: int) -> str:
    """Returns the source for layers of this kind, with a product for each step (`launch_gemm`)."""
    text = resources.files(__package__).joinpath("steps.cu").read_text()
    text = text.replace("#define KIND 0", f"#define KIND {kind}")
    return text.replace("int launch_recurrent_steps(", f"int launch_recurrent_steps_{kind}(")


SKILL = Recurrent
