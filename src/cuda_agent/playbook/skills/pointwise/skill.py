"""Skill (a): a chain of element-wise operators, broadcasting and views as one kernel, with one or more results."""

from __future__ import annotations

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import (
    Printer,
    decode,
    indent,
    kernel_files,
    launcher,
    literal,
    parameters,
    render,
    storage_type,
)
from cuda_agent.playbook.coords import Coord
from cuda_agent.playbook.expression import Expr
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, Step
from cuda_agent.playbook.positions import Ranges
from cuda_agent.playbook.skills.pointwise import tiled
from cuda_agent.playbook.skills.shared.lanes import Lanes, lane_width

NAME = "pointwise"
#: (threads, vectors in flight a thread) on cuda; the first is the default.
CONFIGS = ((256, 2), (256, 1), (128, 4), (512, 2), (256, 4))
_TILE = 2048
#: the launcher's last pointer, where a kernel needs memory of its own.
SCRATCH = (("void", "scratch"),)
#: results from this size on are written past the caches by default.
_LARGE_BYTES = 64 << 20


def pointwise_step(work: Kernel, outputs: tuple[Buffer, ...], device: Device, name: str) -> Step:
    """A step that computes the kernel's stores. A kernel over no axis has one element."""
    if not work.cols:
        work = Kernel(work.nodes, work.stores, (), (1,))
    tiles = tiled.tiling(work) if device is Device.CUDA else None
    settings = 3
    if tiles is not None:
        text, settings = _tiled(work, name, tiles), len(tiles.configs)
    elif device is Device.CUDA:
        text, settings = _cuda(work, name), len(CONFIGS)
    else:
        text = _cpu(work, name)
    declaration, call = launcher(work, device, name)
    return Step(
        skill=NAME,
        name=name,
        inputs=work.reads,
        outputs=outputs,
        files=kernel_files(device, name, text),
        declaration=declaration,
        call=call,
        tunables={name: settings},
    )


def title(work: Kernel) -> str:
    """One line that says what is computed."""
    made = ", ".join(cpp_name(name) for name, _ in work.writes)
    return f"{made} from {', '.join(cpp_name(n) for n in work.reads) or 'constants'}"


def casts(work: Kernel, device: Device) -> list[str]:
    """Statements that give the launcher's pointers their types, where they cross as void*."""
    lines = []
    for type_, name in parameters(work, device):
        lines.append(f"auto* {name}_p = static_cast<{type_}>({name});")
    return lines


def common(work: Kernel, device: Device, name: str, *, scratch: bool = False) -> dict[str, object]:
    """What every template of a launcher needs."""
    declaration, _ = launcher(work, device, name, SCRATCH if scratch else ())
    inside = declaration.split("(", 1)[1].rsplit(", int config", 1)[0]
    pairs = parameters(work, device)
    return {
        "name": name,
        "title": title(work),
        "parameters": ", ".join(f"{t} __restrict__ {n}" for t, n in pairs),
        "parameters_plain": ", ".join(f"{t} {n}" for t, n in pairs),
        "arguments": ", ".join(f"{n}_p" for _, n in pairs),
        "names": ", ".join(n for _, n in pairs),
        "launcher_parameters": inside,
        "casts": indent(casts(work, device), 2),
        "axes": " x ".join(str(size) for size in work.axes()),
    }


def _cuda(work: Kernel, name: str) -> str:
    count = ir.numel(work.cols)
    last = len(work.cols) - 1
    width, crooked = lane_width(work, last)
    names = [f"i{k}" for k in range(len(work.cols))]
    printer = Lanes(work, width, last, crooked=crooked)
    early, loads = printer.early(range(len(work.nodes)))
    body = printer.printer.statements([s.node for s in work.stores])
    declarations, stores = printer.write(list(work.stores), body)
    return render(
        "pointwise/pointwise.cu.j2",
        {
            **common(work, Device.CUDA, name),
            "elements": count,
            "width": width,
            "vectors": count // width,
            "index_type": index_type(work),
            "decode": indent(decode(work.cols, names, "vector", "Index", scale=width), 6),
            "early_declarations": early,
            "early_loads": indent(loads, 6),
            "out_declarations": indent(declarations, 6),
            "body": indent(body, 8),
            "stores": indent(stores, 6),
            "configs": CONFIGS,
        },
    )


def _tiled(work: Kernel, name: str, found: tiled.Tiling) -> str:
    values = {**common(work, Device.CUDA, name), "index_type": index_type(work)}
    return render("pointwise/tiled.cu.j2", {**values, **tiled.values(work, found)})


def index_type(work: Kernel) -> str:
    """32 bits where every address and position fits."""
    sizes = work.axes()
    ranges = Ranges(work.nodes, lambda dim: sizes[dim[0]])
    coords = [e.coord for e in work.nodes if e.op in ("load", "index")] + [s.coord for s in work.stores]
    coords += [bound.coord for e in work.nodes for bound in e.guards]
    reach: float = ir.numel(sizes)
    for coord in coords:
        # Every term by itself, as sums are formed in any order.
        own: float = abs(coord.const) + sum(abs(coef) * sizes[k] for (k, _), coef in coord.terms)
        for term in coord.dynamic:
            own += max(map(abs, ranges.extent(Coord(dynamic=(term,)))))
        reach = max(reach, own)
    return "int" if reach < 2**31 - 2**22 else "long long"


def _cpu(work: Kernel, name: str) -> str:
    last = len(work.cols) - 1
    inner, outer = work.cols[-1], ir.numel(work.cols[:-1])
    names = [f"i{k}" for k in range(last)]

    def axis(k: int) -> str:
        return "j" if k == last else f"i{k}"

    def load(at: int, expr: Expr) -> str:
        read = f"widen({cpp_name(expr.name)}[{printer.address(expr.coord)}])"
        return f"(({printer.test(expr.guards)}) ? {read} : {literal(0, expr.type)})" if expr.guards else read

    printer = Printer(work, axis, load)
    body = printer.statements([s.node for s in work.stores])
    buffers, direct, buffered, copies = [], [], [], []
    for number, store in enumerate(work.stores):
        type_, target = storage_type(store.dtype, Device.CPU), cpp_name(store.name)
        value = f"narrow<{type_}>({printer.known[store.node]})"
        direct.append(f"{target}[{printer.address(store.coord)}] = {value};")
        if store.coord.coef((last, 0)) == 1:
            base = printer.address(store.coord, without=last)
            buffers.append(f"alignas(64) {type_} y{number}[TILE];")
            buffered.append(f"y{number}[k] = {value};")
            copies.append(f"stream_copy({target} + {base} + begin, y{number}, count * sizeof({type_}));")
        else:
            buffered.append(direct[-1])
    written = sum(ir.ITEM_BYTES[s.dtype] for s in work.stores) * ir.numel(work.cols)
    return render(
        "pointwise/pointwise.cpp.j2",
        {
            **common(work, Device.CPU, name),
            "elements": ir.numel(work.cols),
            "outer": outer,
            "inner": inner,
            "tile": _TILE,
            "outer_body": inner < 256,
            "decode": indent(decode(work.cols[:-1], names, "outer", "long"), 6 if inner >= 256 else 4) if names else "",
            "body": indent(body, 10 if inner >= 256 else 6),
            "buffers": indent(buffers, 8),
            "direct_stores": indent(direct, 10 if inner >= 256 else 6),
            "buffered_stores": indent(buffered, 10),
            "copies": indent(copies, 8),
            "large": written >= _LARGE_BYTES,
        },
    )
