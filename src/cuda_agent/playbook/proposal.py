"""Turns a graph into the files of a candidate with its tunables: the playbook's only entry point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import NotCovered
from cuda_agent.core.graph import Graph, GraphInput, Node, TensorMeta, ValueKind
from cuda_agent.core.plan import KernelPlan, PlannedKernel
from cuda_agent.core.records import Candidate
from cuda_agent.playbook import emit, ir
from cuda_agent.playbook.algebra import rewrite
from cuda_agent.playbook.algebra.draft import Draft
from cuda_agent.playbook.plan import Step
from cuda_agent.playbook.planner import plan
from cuda_agent.playbook.registry import SKILLS
from cuda_agent.playbook.skills.attention.skill import OPERATOR as ATTENTION
from cuda_agent.playbook.skills.attention.skill import read as read_attention

_KNOWN_DTYPES = frozenset(ir.ITEM_BYTES)


@dataclass(frozen=True)
class Proposal:
    """A candidate's files, its tunables (name -> number of settings; 0 is the default), and the plan behind them."""

    files: Mapping[str, str]
    tunables: Mapping[str, int]
    plan: KernelPlan

    @property
    def candidate(self) -> Candidate:
        return Candidate(files=dict(self.files))

    @property
    def steps(self) -> tuple[str, ...]:
        """The kernels' names in order."""
        return tuple(kernel.name for kernel in self.plan.kernels)

    @property
    def skills(self) -> tuple[str, ...]:
        """The skills that the plan uses, the algebra first."""
        algebra = ["algebra"] if self.plan.rewrites else []
        return tuple(dict.fromkeys([*algebra, *(kernel.skill for kernel in self.plan.kernels)]))

    def config_line(self, config: Mapping[str, int] | None) -> str:
        """Returns the line of `model_new.py` with these settings, or with the defaults for None."""
        return emit.config_line(self.tunables, config)


def proposals(graph: Graph, device: Device, precision: Precision) -> tuple[Proposal, ...]:
    """The plans worth measuring, the default one first: on cuda, one more whose convolutions run with their channels
    innermost, one more without shared memory for small windows, and one more whose attentions are one kernel each,
    where there are such. Raises NotCovered as `propose` does."""
    found = [propose(graph, device, precision)]
    others: list[dict[str, bool]] = []
    if device is Device.CUDA and "convolution" in found[0].skills:
        others.append({"channels_last": True})
    if device is Device.CUDA and "stencil" in found[0].skills:
        others.append({"written_out": True})
    if any(node.op == ATTENTION for node in graph.nodes):
        others.append({"attention": True})
    for options in others:
        try:
            other = propose(graph, device, precision, **options)
        except NotCovered:
            continue
        if all(other.files != one.files for one in found):
            found.append(other)
    return tuple(found)


def propose(
    graph: Graph,
    device: Device,
    precision: Precision,
    *,
    channels_last: bool = False,
    attention: bool = False,
    written_out: bool = False,
    fused: bool = True,
) -> Proposal:
    """Raises NotCovered, naming the operators, where no skill covers the whole graph. `channels_last`: convolutions
    read and write NHWC where they can, and what is between them too. `attention`: one kernel for each attention, where
    it can be, instead of products and a softmax. `written_out`: small windows as element-wise chains. Not `fused`: a
    kernel for each operator, which is what fusion is measured against."""
    _check(graph)

    def is_whole(draft: Draft, node: Node) -> bool:
        return read_attention(node, draft.meta, device, precision) is not None

    whole = is_whole if attention else None
    rewritten = rewrite(graph, expose_biases=device is Device.CUDA, channels_last=channels_last, whole=whole)
    main = rewritten.graph
    steps, state = plan(
        main, device, precision, SKILLS, channels_last=channels_last, written_out=written_out, fused=fused
    )
    inputs: dict[str, GraphInput] = {item.name: item for item in main.inputs}
    stages = [emit.Stage(emit.FORWARD, steps, _given(main, steps, state.returned), state.returned)]
    if rewritten.derive is not None:
        derived, derived_state = plan(rewritten.derive, device, Precision.FP32, SKILLS, [step.name for step in steps])
        inputs |= {item.name: item for item in rewritten.derive.inputs}
        given = _given(rewritten.derive, derived, derived_state.returned)
        stages.append(emit.Stage(emit.DERIVE, derived, given, derived_state.returned))
    every = [step for stage in stages for step in stage.steps]
    return Proposal(
        files=emit.files(graph, stages, inputs, device),
        tunables={name: count for name, count in stages[0].tunables.items() if count > 1},
        plan=KernelPlan(
            kernels=tuple(PlannedKernel(name=step.name, skill=step.skill) for step in every),
            rewrites=tuple(dict.fromkeys(rewritten.applied)),
            channels_last=channels_last,
        ),
    )


def _given(graph: Graph, steps: tuple[Step, ...], returned: tuple[str, ...]) -> tuple[tuple[str, TensorMeta], ...]:
    """Returns the graph inputs that the steps read or that are returned, in the graph's order."""
    read = {name for step in steps for name in step.inputs} | set(returned)
    order = (ValueKind.INPUT, ValueKind.PARAMETER, ValueKind.BUFFER, ValueKind.CONSTANT)
    items = sorted((item for item in graph.inputs if item.name in read), key=lambda item: order.index(item.kind))
    return tuple((item.name, item.meta) for item in items)


def _check(graph: Graph) -> None:
    """Refuses graphs with inputs that no kernel can read. Raises NotCovered."""
    for item in graph.inputs:
        if item.meta.dtype not in _KNOWN_DTYPES:
            raise NotCovered(f"Values of type {item.meta.dtype} have no kernels", "Use real types of 8 to 64 bits")
        if item.kind is ValueKind.CONSTANT and item.values is None and item.target not in graph.state:
            raise NotCovered(
                f"The constant {item.target or item.name} isn't in the state dict", "Register it as a buffer"
            )
        # A constant may be empty: concatenations have such operands.
        if 0 in item.meta.shape and item.kind is not ValueKind.CONSTANT:
            raise NotCovered(f"{item.name} is empty", "Empty tensors have no kernels")
