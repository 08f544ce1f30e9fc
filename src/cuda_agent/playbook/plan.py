"""What a plan is made of: steps that launch one kernel each (or one library call), in order, over named buffers.

Skills build `Step`s, the planner (`planner.py`) orders them, `emit.py` prints them. Everything is plain data.

How a step reads in the binding: every buffer is a local `torch::Tensor` named `cpp_name(value)`; the outputs and the
scratch of a step are allocated with `torch::empty` just before its `call`; a tunable is the local
`int config_<tunable>`; on cuda the local `stream` is the current stream.
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
    """A tensor in memory, by the name of the graph value that it holds."""

    name: str
    meta: TensorMeta


@dataclass(frozen=True)
class Step:
    """One launch.

    inputs       names of the buffers that it reads (graph inputs, weights, derived values, outputs of earlier steps)
    outputs      buffers that it makes; their names are graph values (or names made by `PlanState.fresh`)
    scratch      buffers that only this step uses
    files        `kernels/…` path -> text; two steps may bring the same path only with the same text (shared headers)
    declaration  the launcher's C declaration, such as `extern "C" void launch_f(const void* x, …, int config, …);`
    call         C++ statements of the binding, in terms of the names above
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
    includes: tuple[str, ...] = ()
    skill: str = ""


@dataclass(frozen=True)
class Claim:
    """A skill's answer to a node: the step, and the nodes that it computes (the asked one and those fused into it).
    A covered node's value exists afterwards only when it's among the step's outputs, or when `then`, called after
    those are known, defines it."""

    step: Step
    covers: frozenset[str]
    then: Callable[[], object] | None = None


@dataclass(frozen=True)
class Options:
    """How a graph is planned.

    channels_last  convolutions read and write their channels innermost where they can, and what is between them too
    written_out    small windows are element-wise chains, whose neighbours share what they read by the caches alone
    whole          operators that a skill computes as they are (`Skill.keeps`) aren't lowered
    fused          without it every operator leaves its result in memory, which is what fusion is measured against
    """

    channels_last: bool = False
    written_out: bool = False
    whole: bool = False
    fused: bool = True


DEFAULT = Options()


@dataclass(frozen=True)
class StridedView:
    """A value that is a window on a buffer: element (i, j, …) at `offset + Σ strides·index`, in elements."""

    buffer: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class PlanState(Protocol):
    """What a skill may ask while the planner walks over the graph."""

    graph: Graph
    device: Device
    precision: Precision
    options: Options
    #: the graph's values as kernels compute them; a skill may add more
    builder: Builder

    def node(self, name: str) -> Node | None:
        """The node that makes this value, None for a graph input."""

    def meta(self, name: str) -> TensorMeta:
        """Shape, strides, dtype of any graph value."""

    def users(self, name: str) -> tuple[Node, ...]:
        """The nodes that read this value, in order (graph outputs are not nodes: see `is_output`)."""

    def is_output(self, name: str) -> bool: ...

    def strided(self, name: str) -> StridedView | None:
        """The value as a window on a buffer that exists already (through view operators), or None."""

    def require(self, names: Sequence[str]) -> None:
        """Put these values into memory. Raises Conflict when one can't be computed."""

    def placed(self, name: str, strides: tuple[int, ...]) -> StridedView | None:
        """The value as a window with these strides, put there first if it must be, or None."""

    def fresh(self, stem: str) -> str:
        """A name that no value has yet: for scratch and for step names."""


@dataclass(frozen=True)
class Skill:
    """One way to write kernels, found by its folder (`registry.py`). It takes operators of the graph (`claim`), or
    prints the kernels of what was fused between those (`fits`, `step`), and overrides what it does."""

    notes: SkillNotes

    def claim(self, state: PlanState, node: Node) -> Claim | None:
        """The steps for a node, None where the skill doesn't apply. `Step.inputs` that aren't in memory yet are made
        before."""
        return None

    def fits(self, work: Kernel) -> bool:
        """Whether it prints such kernels."""
        return False

    def step(self, work: Kernel, outputs: tuple[Buffer, ...], device: Device, name: str) -> Step | None:
        """The step for a kernel that fits, None where another skill must print it after all."""
        return None

    def keeps(self, node: Node, meta: Callable[[str], TensorMeta], device: Device, precision: Precision) -> bool:
        """Whether it claims the node as it is, so that the algebra needn't lower it."""
        return False

    def other_options(self, graph: Graph, device: Device, used: bool) -> Options | None:
        """Options of another plan that is worth measuring; `used`: the skill is part of the default plan."""
        return None


def pointer(buffer: str, offset: int, item_bytes: int) -> str:
    """The address of a buffer's element at `offset`, as the binding writes it."""
    start = f"{cpp_name(buffer)}.data_ptr()"
    return f"static_cast<const char*>({start}) + {offset * item_bytes}LL" if offset else start
