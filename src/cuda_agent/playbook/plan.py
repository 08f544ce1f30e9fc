"""The parts of a plan: steps in order over named buffers. Each step launches one kernel or makes one library call.

Skills build `Step`s, the planner (`planner.py`) orders them, and `emit.py` prints them. All but the planner's
state is plain data.

In the binding every buffer is a local `torch::Tensor` named `cpp_name(value)`. The outputs and the scratch of a step
are allocated with `torch::empty` just before its `call`. A tunable is the local `int config_<tunable>`. On cuda, the
local `stream` is the current stream.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.files import unused
from cuda_agent.core.graph import Graph, Node, TensorMeta
from cuda_agent.playbook import ir, kernel
from cuda_agent.playbook.algebra.draft import node_refs
from cuda_agent.playbook.coords import Conflict
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.lower import Builder
from cuda_agent.playbook.names import cpp_name
from cuda_agent.workspace.skills import SkillNotes


@dataclass(frozen=True)
class Buffer:
    """A tensor in memory. Its name is that of the graph value that it holds."""

    name: str
    meta: TensorMeta


@dataclass(frozen=True)
class Step:
    """One kernel launch or library call. Steps of one name launch the same kernel.

    inputs       names of the buffers that it reads (graph inputs, weights, derived values, outputs of earlier steps)
    outputs      buffers that it makes; their names are graph values (or names made by `PlanState.fresh`)
    scratch      buffers that only this step uses
    call         C++ statements of the binding, in terms of the names above
    files        `kernels/…` path -> text; two steps may bring the same path only with the same text (shared headers)
    declaration  the launcher's C declaration, such as `extern "C" void launch_f(const void* x, …, int config, …);`
    shifts       bytes by which the pointers to some inputs are moved in `call`
    tunables     tunable -> number of its settings (0 … n-1; 0 is the default)
    includes     headers that the binding needs for `call`, with their brackets or quotes
    skill        the skill that made it; the planner fills it in
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[Buffer, ...]
    call: str
    files: Mapping[str, str] = field(default_factory=dict)
    declaration: str = ""
    tunables: Mapping[str, int] = field(default_factory=dict)
    scratch: tuple[Buffer, ...] = ()
    shifts: Mapping[str, int] = field(default_factory=dict)
    includes: tuple[str, ...] = ()
    skill: str = ""


class DoesNotApply(Exception):
    """A skill can't compute a node whose operands have this form."""


#: gets an element-wise kernel, the step whose result it reads, and the kernel's own step. Returns one step for both, or
#: None.
Epilogue: TypeAlias = Callable[[Kernel, Step, Step], Step | None]


@dataclass(frozen=True)
class Claim:
    """A skill's steps for a node. They compute the nodes `covers`, the claimed one and those fused into it. A covered
    node's value exists afterwards only if it is among the step's outputs, or if `then` defines it, which is called when
    those are known. `epilogue` is for the kernel that alone reads the step's result."""

    step: Step
    covers: frozenset[str]
    then: Callable[[], object] | None = None
    epilogue: Epilogue | None = None


@dataclass(frozen=True)
class Options:
    """The options of a plan.

    channels_last  convolutions, and the kernels between them, use a layout with the channels innermost where they can
    written_out    small windows are element-wise chains, so neighbouring windows share their reads in the caches only
    whole          operators that a skill may compute as they are (`Skill.keeps`) aren't lowered
    beside         all linear layers of one input are one in half precision, also those that element-wise kernels read
    fused          operators are fused. Without it each one stores its result, as the baseline for fusion
    """

    channels_last: bool = False
    written_out: bool = False
    whole: bool = False
    beside: bool = False
    fused: bool = True


DEFAULT = Options()


@dataclass(frozen=True)
class StridedView:
    """A value as a window on a buffer: element (i, j, …) is at `offset + Σ strides·index`, in elements."""

    buffer: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass
class PlanState(ABC):
    """The planner's state as skills see it. `resident` maps the values in memory to their strides in elements."""

    graph: Graph
    device: Device
    precision: Precision
    options: Options = DEFAULT
    #: the graph's values as kernels compute them. A skill may add more.
    builder: Builder = field(init=False)
    resident: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _nodes: dict[str, Node] = field(default_factory=dict)
    _metas: dict[str, TensorMeta] = field(default_factory=dict)
    _users: dict[str, list[Node]] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.builder = Builder(self.graph)
        for item in self.graph.inputs:
            self._metas[item.name] = item.meta
            if item.values is not None and item.meta.numel == 1:
                whole = item.meta.dtype not in ir.FLOAT_DTYPES
                value = self.builder.pointwise(
                    "copy", int(item.values[0]) if whole else item.values[0], dtype=item.meta.dtype
                )
                # The value has another name than the input, because its buffer would be another one.
                self.builder.alias[item.name] = self.builder.expand(value, item.meta.shape)
            else:
                self.builder.source(item.name, item.meta)
        for node in self.graph.nodes:
            self._nodes[node.name] = node
            meta = node.outputs[0] if node.outputs else None
            if meta is not None:
                self._metas[node.name] = meta
            for name in dict.fromkeys(node_refs(node)):
                self._users.setdefault(name, []).append(node)
        self._names = set(self._metas) | set(self._nodes)

    @abstractmethod
    def require(self, names: Sequence[str]) -> None:
        """Puts these values into memory. Raises Conflict when one can't be computed."""

    def node(self, name: str) -> Node | None:
        """Returns the node that computes this value, None for a graph input."""
        return self._nodes.get(name)

    def meta(self, name: str) -> TensorMeta:
        """Returns shape, strides and dtype of any graph value."""
        if name in self._metas:
            return self._metas[name]
        return self.builder.meta(name)

    def users(self, name: str) -> tuple[Node, ...]:
        """Returns the nodes that read this value, in order."""
        return tuple(self._users.get(name, ()))

    def is_output(self, name: str) -> bool:
        """Returns whether the graph returns this value."""
        return name in self.graph.outputs

    def strided(self, name: str) -> StridedView | None:
        """Returns the value as a window on a buffer that is in memory already (through views), or None."""
        resolved = self.builder.resolve(name)
        value = self.builder.values.get(resolved)
        if value is None:
            return None
        try:
            group = kernel.inline(resolved, self.builder.values, self.resident)
        except Conflict:
            return None
        expr = group.inliner.nodes[group.stores[0].node]
        if expr.op != "load" or expr.guards or expr.coord.dynamic or expr.dtype != value.dtype:
            return None
        strides = []
        for root, factors in enumerate(group.frame.roots):
            coefs = [expr.coord.coef((root, position)) for position in range(len(factors))]
            for outer in range(len(factors) - 1):
                if factors[outer] > 1 and coefs[outer] != coefs[outer + 1] * factors[outer + 1]:
                    return None
            strides.append(coefs[-1] if factors and factors[-1] > 1 else next((c for c in coefs if c), 0))
        return StridedView(expr.name, value.shape, tuple(strides), expr.coord.const)

    def fresh(self, stem: str) -> str:
        """Returns an unused name, for scratch or a step."""
        name = unused(stem, self._names.__contains__, "_")
        self._names.add(name)
        return name

    def placed(self, name: str, strides: tuple[int, ...]) -> StridedView | None:
        """Returns the value as a window with these strides, or None. A value that has no such buffer is computed into a
        new one, or copied."""
        resolved, meta = self.builder.resolve(name), self.meta(name)
        wanted = TensorMeta(shape=meta.shape, dtype=meta.dtype, strides=strides)
        if self.strided(name) is None:
            if resolved not in {self.builder.resolve(output) for output in self.graph.outputs}:
                self._metas[resolved] = wanted
            self.require([name])
        view = self.strided(name)
        if view is not None and view.offset == 0 and ir.same_strides(view.shape, view.strides, strides):
            return view
        copy = self.fresh(f"{cpp_name(name)}_copy")
        self._metas[copy] = wanted
        self.builder.pointwise("copy", resolved, dtype=meta.dtype, name=copy)
        self.require([copy])
        return self.strided(copy)


@dataclass(frozen=True)
class Skill:
    """One way to write kernels, found by its folder (`registry.py`). It claims operators of the graph (`claim`), or
    prints the fused kernels between these (`fits`, `step`), and overrides the methods that it needs."""

    notes: SkillNotes

    def claim(self, state: PlanState, node: Node) -> Claim | None:
        """Returns the step for a node. Returns None or raises DoesNotApply where the skill doesn't apply. The step's
        inputs are put into memory before it."""
        return None

    def fits(self, work: Kernel) -> bool:
        """Returns whether it prints kernels of this form."""
        return False

    def step(self, work: Kernel, outputs: tuple[Buffer, ...], device: Device, name: str) -> Step | None:
        """Returns the step for a kernel that fits, None where another skill must print it."""
        return None

    def keeps(
        self, node: Node, meta: Callable[[str], TensorMeta], device: Device, precision: Precision, options: Options
    ) -> bool:
        """Returns whether it claims the node as it is, so that the algebra needn't lower it."""
        return False

    def other_options(self, graph: Graph, device: Device, used: bool) -> Options | None:
        """Returns the options of another plan that is worth measuring. `used` says whether the default plan uses the
        skill."""
        return None


class Place(Protocol):
    """A place in a buffer, `offset` elements from its start."""

    @property
    def buffer(self) -> str: ...

    @property
    def offset(self) -> int: ...


def pointer(place: Place | None, item_bytes: int = 4) -> str:
    """Returns C++ text of the address of a place in a buffer, `nullptr` for None."""
    if place is None:
        return "nullptr"
    start = f"{cpp_name(place.buffer)}.data_ptr()"
    return f"static_cast<const char*>({start}) + {place.offset * item_bytes}LL" if place.offset else start
