"""Scatters of whole slices: they are stored or combined at places along one dimension."""

import math
from dataclasses import dataclass
from importlib import resources

from cuda_agent.core.graph import Arg, Node
from cuda_agent.core.graph import Ref as GraphRef
from cuda_agent.playbook import ir
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, DoesNotApply, PlanState, Step, StridedView, pointer
from cuda_agent.playbook.skills.shared.operands import buffers, launch_step, one_piece, windows

CONFIGS = 4
#: picks for each slice of the result from which on atomic operations come first among the settings.
_MANY_PICKS = 8
#: numbers of a slice that lie next to each other, at least.
_LEAST_INNER = 16


@dataclass(frozen=True)
class Slices:
    """`base` with the slices of `values` along `dim` combined in a `way`; `index` has the place of each."""

    base: str
    index: str
    values: str
    dim: int
    way: str


def read(state: PlanState, node: Node, way: str | None) -> Slices | None:
    """What a node puts somewhere in slices; None for anything else. `way`: of scatter and its kin, whose index has an
    element for each number."""
    each, operands = way is not None, _operands(node, way)
    if operands is None:
        return None
    dim, way, *refs = operands
    base, index, values = (one.ref for one in refs if isinstance(one, GraphRef))
    there, put, places = state.meta(base), state.meta(values), state.meta(index)
    rank = len(there.shape)
    if {there.dtype, put.dtype} != {"float32"} or places.dtype not in ("int64", "int32"):
        return None
    if not there.shape or not 0 < there.numel < 1 << 31 or not 0 < put.numel < 1 << 31 or len(put.shape) != rank:
        return None
    dim %= rank
    if put.shape != (*there.shape[:dim], put.shape[dim], *there.shape[dim + 1 :]):
        return None
    expected = put.shape if each else put.shape[dim : dim + 1]
    if places.shape != expected or math.prod(there.shape[dim + 1 :]) < _LEAST_INNER:
        return None
    return Slices(base, index, values, dim, way)


def _operands(node: Node, way: str | None) -> tuple[int, str, GraphRef, GraphRef, GraphRef] | None:
    """The dimension, the way, what is there, index and values; None where they aren't tensors, or for other
    operators."""
    name, args = node.op.removeprefix("aten."), list(node.args)
    dim: Arg = None
    found: list[Arg] = []
    if name == "index_put.default" and isinstance(args[1], list | tuple):
        given = [at for at, one in enumerate(args[1]) if one is not None]
        if len(given) == 1:
            dim, found = given[0], [args[0], args[1][given[0]], args[2]]
        way = "sum" if node.argument(3, "accumulate", False) else "set"
    elif name == "index_reduce.default" and node.argument(5, "include_self", True):
        dim, found, way = args[1], [args[0], *args[2:4]], str(node.argument(4, "reduce"))
    elif way is not None:
        dim, found = args[1], [args[0], *args[2:4]]
    else:
        return None
    refs = [one for one in found if isinstance(one, GraphRef)]
    return (dim, way, refs[0], refs[1], refs[2]) if isinstance(dim, int) and len(refs) == 3 else None


def _index_along(state: PlanState, call: Slices) -> tuple[StridedView, int]:
    """Returns the window on the places of the slices, and their distance. Raises DoesNotApply where they differ
    within a slice."""
    whole = state.strided(call.index) if len(state.meta(call.index).shape) > 1 else windows(state, [call.index])[0]
    if whole is None:
        raise DoesNotApply(call.index)
    dim = call.dim if len(whole.shape) > 1 else 0
    steps = list(zip(whole.shape, whole.strides, strict=True))
    _, apart = steps.pop(dim)
    if any(size > 1 and stride for size, stride in steps):
        raise DoesNotApply(call.index)
    return whole, apart


def sources(name: str) -> dict[str, str]:
    """Returns a kernel's source on cuda, and the header that it includes."""
    package = resources.files(__package__)
    return {f"kernels/{file}": package.joinpath(file).read_text() for file in (f"{name}.cu", "combine.cuh")}


def step(state: PlanState, node: Node, call: Slices, way: int) -> Step:
    """Raises DoesNotApply."""
    index, apart = _index_along(state, call)
    base, values = (one_piece(state, name) for name in (call.base, call.values))
    sizes, picks, wide = base.shape, values.shape[call.dim], state.meta(call.index).dtype == "int64"
    outer, size, inner = math.prod(sizes[: call.dim]), sizes[call.dim], math.prod(sizes[call.dim + 1 :])
    name, tunable = f"scatter_{cpp_name(node.name)}", f"scatter_{call.way}_{picks}_slices_of_{size}_by_{inner}"
    config = f"config_{tunable}" if picks < _MANY_PICKS * size else f"(config_{tunable} + 2) % {CONFIGS}"
    links = Buffer(state.fresh(f"{name}_links"), ir.contiguous_meta((size + picks,), "int32"))
    shape = (outer, size, inner, picks, way, int(wide), apart)
    out, room = (f"{cpp_name(value)}.data_ptr()" for value in (node.name, links.name))
    given = {"base": pointer(base), "index": pointer(index, 8 if wide else 4), "values": pointer(values)}
    return launch_step(
        name,
        "launch_scatter_slices",
        {"void* out": out, **given, "void* links": room},
        {"shape": shape},
        config=config,
        inputs=buffers((base, index, values)),
        outputs=(Buffer(node.name, ir.contiguous_meta(base.shape, "float32")),),
        files=sources("scatter_slices"),
        tunables={tunable: CONFIGS},
        scratch=(links,),
    )
