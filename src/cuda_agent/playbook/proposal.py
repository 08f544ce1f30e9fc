"""Turns a graph into the files of a candidate with its tunables: the playbook's only entry point."""

from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import NotCovered
from cuda_agent.core.graph import Graph, GraphInput, Node, TensorMeta, ValueKind
from cuda_agent.core.plan import KernelPlan, PlannedKernel
from cuda_agent.playbook import emit, ir
from cuda_agent.playbook.algebra import library, rewrite
from cuda_agent.playbook.algebra.draft import Draft, Rule
from cuda_agent.playbook.draws import with_drawn_inputs
from cuda_agent.playbook.plan import DEFAULT, Options, Step
from cuda_agent.playbook.planner import plan
from cuda_agent.playbook.registry import skills

_KNOWN_DTYPES = frozenset(ir.ITEM_BYTES)


@dataclass(frozen=True)
class Proposal:
    """A candidate's files, its tunables (name -> number of settings; 0 is the default), and the plan behind them."""

    files: Mapping[str, str]
    tunables: Mapping[str, int]
    plan: KernelPlan

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
    """Returns the plans that are worth measuring, the default one first. Raises NotCovered as `propose` does."""
    found = [propose(graph, device, precision)]
    for options in other_options(graph, device, found[0]):
        try:
            other = propose(graph, device, precision, options)
        except NotCovered:
            continue
        if all(other.files != one.files for one in found):
            found.append(other)
    return tuple(found)


def other_options(graph: Graph, device: Device, default: Proposal) -> list[Options]:
    """Returns the options of the skills' other plans."""
    found = (skill.other_options(graph, device, skill.notes.name in default.skills) for skill in skills())
    return [options for options in found if options is not None]


def propose(graph: Graph, device: Device, precision: Precision, options: Options = DEFAULT) -> Proposal:
    """Plans a graph and prints its candidate. Raises NotCovered, which names the operators that no skill covers."""
    _check(graph)

    def is_kept(draft: Draft, node: Node) -> bool:
        return any(skill.keeps(node, draft.meta, device, precision, options) for skill in skills())

    rewritten = rewrite(
        with_drawn_inputs(graph),
        library_calls=_library_calls(device, options),
        is_kept=is_kept,
    )
    main = rewritten.graph
    steps, state = plan(main, device, precision, options)
    inputs: dict[str, GraphInput] = {item.name: item for item in main.inputs}
    stages = [emit.Stage(emit.FORWARD, steps, _given(main, steps, state.returned), state.returned)]
    if rewritten.derive is not None:
        derived, derived_state = plan(rewritten.derive, device, Precision.FP32, taken=[step.name for step in steps])
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
            channels_last=options.channels_last,
        ),
    )


def _library_calls(device: Device, options: Options) -> list[Rule]:
    """Returns the rules that prepare library calls of this plan."""
    if device is Device.CPU:
        return [library.channels_last] if options.channels_last else []
    beside = library.linears_side_by_side if options.beside else library.projections_side_by_side
    rules: list[Rule] = [beside, library.expose_bias]
    return [*rules, library.channels_last] if options.channels_last else rules


def _given(graph: Graph, steps: tuple[Step, ...], returned: tuple[str, ...]) -> tuple[tuple[str, TensorMeta], ...]:
    """Returns the graph inputs that the steps read or that are returned, in the graph's order."""
    read = {name for step in steps for name in step.inputs} | set(returned)
    order = (ValueKind.INPUT, ValueKind.DRAWN, ValueKind.PARAMETER, ValueKind.BUFFER, ValueKind.CONSTANT)
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
