"""The parts of a plan: steps in order over named buffers. Each step launches one kernel or makes one library call.

Skills build `Step`s, the planner (`planner.py`) orders them, and `emit.py` prints them. Everything is plain data.

In the binding every buffer is a local `torch::Tensor` named `cpp_name(value)`. The outputs and the scratch of a step
are allocated with `torch::empty` just before its `call`. A tunable is the local `int config_<tunable>`. On cuda, the
local `stream` is the current stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Graph, Node, TensorMeta
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
    files        `kernels/…` path -> text; two steps may bring the same path only with the same text (shared headers)
    declaration  the launcher's C declaration, such as `extern "C" void launch_f(const void* x, …, int config, …);`
    call         C++ statements of the binding, in terms of the names above
    shifts       bytes by which the pointers to some inputs are moved in `call`
    tunables     tunable -> number of its settings (0 … n-1; 0 is the default)
    includes     headers that the binding needs for `call`, with their brackets or quotes
    skill        the skill that made it; the planner fills it in
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[Buffer, ...]
    files: Mapping[str, str]
    declaration: str
    call: str
    tunables: Mapping[str, int] = field(default_factory=dict)
    scratch: tuple[Buffer, ...] = ()
    shifts: Mapping[str, int] = field(default_factory=dict)
    includes: tuple[str, ...] = ()
    skill: str = ""


class DoesNotApply(Exception):
    """A skill can't compute a node whose operands have this form."""


@dataclass(frozen=True)
class Claim:
    """A skill's steps for a node. They compute the nodes `covers`, the claimed one and those fused into it. A covered
    node's value exists afterwards only if it is among the step's outputs, or if `then` defines it, which is called when
    those are known."""

    step: Step
    covers: frozenset[str]
    then: Callable[[], object] | None = None


@dataclass(frozen=True)
class Options:
    """The options of a plan.

    channels_last  convolutions, and the kernels between them, use a layout with the channels innermost where they can
    written_out    small windows are element-wise chains, so neighbouring windows share their reads in the caches only
    whole          operators that a skill computes as they are (`Skill.keeps`) aren't lowered
    fused          operators are fused. Without it each one stores its result, as the baseline for fusion
    """

    channels_last: bool = False
    written_out: bool = False
    whole: bool = False
    fused: bool = True


DEFAULT = Options()


@dataclass(frozen=True)
class StridedView:
    """A value as a window on a buffer: element (i, j, …) is at `offset + Σ strides·index`, in elements."""

    buffer: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class PlanState(Protocol):
    """The interface to the planner for skills."""

    graph: Graph
    device: Device
    precision: Precision
    options: Options
    #: the graph's values as kernels compute them. A skill may add more.
    builder: Builder

    def node(self, name: str) -> Node | None:
        """Returns the node that computes this value, None for a graph input."""

    def meta(self, name: str) -> TensorMeta:
        """Returns shape, strides and dtype of any graph value."""

    def users(self, name: str) -> tuple[Node, ...]:
        """Returns the nodes that read this value, in order."""

    def is_output(self, name: str) -> bool:
        """Returns whether the graph returns this value."""

    def strided(self, name: str) -> StridedView | None:
        """Returns the value as a window on a buffer that is in memory already (through views), or None."""

    def require(self, names: Sequence[str]) -> None:
        """Puts these values into memory. Raises Conflict when one can't be computed."""

    def placed(self, name: str, strides: tuple[int, ...]) -> StridedView | None:
        """Returns the value as a window with these strides, computed or copied there if needed, or None."""

    def fresh(self, stem: str) -> str:
        """Returns an unused name, for scratch or a step."""


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

    def keeps(self, node: Node, meta: Callable[[str], TensorMeta], device: Device, precision: Precision) -> bool:
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
