"""Where a grouped product applies and the step that computes it."""

from importlib import resources

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import Node, Ref
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import render
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, Claim, DoesNotApply, PlanState, Skill, Step, StridedView, pointer
from cuda_agent.playbook.skills.shared.operands import buffers, launch_step, one_piece, windows

OPERATOR = "aten._grouped_mm.default"
#: 128, 64 and 16 rows a block.
CONFIGS = 3
#: elements of 16 bytes, at whose multiples rows begin.
_WORDS = 8


def _operands(state: PlanState, node: Node) -> tuple[str, str, str]:
    """Returns rows [S, K], matrices [G, K, N] and the ends of the groups [G]. Raises DoesNotApply for other forms."""
    names = [arg.ref for arg in node.args[:3] if isinstance(arg, Ref)]
    if (
        node.op != OPERATOR
        or len(names) != 3
        or any(arg is not None for arg in (*node.args[3:], *node.kwargs.values()))
    ):
        raise DoesNotApply(node.name)
    a, b, ends = (state.meta(name) for name in names)
    if a.dtype != "bfloat16" or b.dtype != a.dtype or ends.dtype != "int32":
        raise DoesNotApply(node.name)
    if (len(a.shape), len(b.shape)) != (2, 3) or 0 in (*a.shape, *b.shape) or max(a.shape) >> 31:
        raise DoesNotApply(node.name)
    return names[0], names[1], names[2]


def _aligned(state: PlanState, name: str) -> StridedView:
    """Returns a window in which the summed dimension is contiguous and all rows begin at multiples of 16 bytes. Raises
    DoesNotApply where it is no multiple of that."""
    (view,) = windows(state, [name])
    inner = len(view.shape) - 1 if len(view.shape) == 2 else 1
    others = [step for dim, step in enumerate(view.strides) if dim != inner and view.shape[dim] > 1]
    if view.strides[inner] == 1 and all(step % _WORDS == 0 for step in (*others, view.offset)):
        return view
    order = [dim for dim in range(len(view.shape)) if dim != inner]
    placed = state.placed(name, ir.ordered_strides(view.shape, [*order, inner]))
    if placed is None or view.shape[inner] % _WORDS:
        raise DoesNotApply(name)
    return placed


class Grouped(Skill):
    """_grouped_mm of sorted rows with a matrix for each group, in bfloat16."""

    def claim(self, state: PlanState, node: Node) -> Claim | None:
        """Returns the step for a grouped product. Raises DoesNotApply for other nodes."""
        rows, matrices, bounds = _operands(state, node)
        cuda = state.device is Device.CUDA
        a, b = (_aligned(state, name) for name in (rows, matrices)) if cuda else windows(state, (rows, matrices))
        if cuda and (b.shape[1] % _WORDS or b.shape[2] % _WORDS):
            raise DoesNotApply(node.name)
        ends = one_piece(state, bounds)
        out = Buffer(node.name, ir.contiguous_meta((a.shape[0], b.shape[2]), "bfloat16"))
        step = _cuda_step(node, a, b, ends, out) if cuda else _cpu_step(node, a, b, ends, out)
        return Claim(step, frozenset({node.name}))


def _cuda_step(node: Node, a: StridedView, b: StridedView, ends: StridedView, out: Buffer) -> Step:
    (count, depth), (groups, _, columns) = a.shape, b.shape
    numbers = [count, columns, depth, groups, a.strides[0], b.strides[2], b.strides[0]]
    return launch_step(
        f"grouped_{cpp_name(node.name)}",
        "launch_grouped",
        {
            "void* out": f"{cpp_name(node.name)}.data_ptr()",
            "a": pointer(a, 2),
            "b": pointer(b, 2),
            "ends": pointer(ends),
        },
        {"numbers": numbers},
        inputs=buffers((a, b, ends)),
        outputs=(out,),
        files={"kernels/grouped.cu": resources.files(__package__).joinpath("grouped.cu").read_text()},
        tunables={f"grouped_{count}x{columns}x{depth}_of_{groups}": CONFIGS},
    )


def _cpu_step(node: Node, a: StridedView, b: StridedView, ends: StridedView, out: Buffer) -> Step:
    """torch's own product for each group."""
    return Step(
        name=f"grouped_{cpp_name(node.name)}",
        inputs=buffers((a, b, ends)),
        outputs=(out,),
        call=render("grouped/cpu.cpp.j2", {"a": a, "b": b, "ends": ends, "out": cpp_name(node.name)}).rstrip(),
        includes=("<ATen/ATen.h>",),
    )


SKILL = Grouped
