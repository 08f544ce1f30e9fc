"""Values that the templates of printed kernels have in common, and the step that launches a kernel."""

from collections.abc import Mapping, Sequence
from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import TensorMeta
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import Printer, kernel_files, launcher, notes_values, parameters, render, storage_type
from cuda_agent.playbook.coords import Coord
from cuda_agent.playbook.kernel import Kernel, Store
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Buffer, Step
from cuda_agent.playbook.positions import Ranges

#: results from this size on are written past the caches by default.
_LARGE_BYTES = 64 << 20
#: the launcher's last pointer, where a kernel needs memory of its own.
SCRATCH = (("void", "scratch"),)


def scratch_pointers(
    work: Kernel, name: str, sweeps: list[dict[str, Any]], results: int
) -> tuple[dict[str, object], int]:
    """Returns the values of a template with parameters `parts<k>` for the partial states of each sweep, and the bytes
    of the scratch memory. Adds to each sweep the place of its states of so many results in this memory."""
    values = common(work, Device.CUDA, name, scratch=True)
    names = [f"parts{k}" for k in range(len(sweeps))]
    for key, text in (
        ("parameters", "State{k}* __restrict__ {name}"), ("parameters_plain", "State{k}* {name}"),
        ("names", "{name}"), ("arguments", "{name}_p"),
    ):  # fmt: skip
        values[key] = ", ".join([str(values[key]), *(text.format(k=k, name=name) for k, name in enumerate(names))])
    offset = 0
    for sweep in sweeps:
        sweep["offset"] = offset
        offset += -(-results * sweep["state"].bytes // 256) * 256
    return values, offset


def streamed(printer: Printer, stores: Sequence[Store], last: int, place: str) -> dict[str, list[str]]:
    """Returns C++ statements that write one element of each result on the CPU: directly, and past the caches. The
    latter go through the tiles `buffers` at index `place`, which `copies` write; results that aren't contiguous along
    the axis `last` are always written directly."""
    buffers, direct, buffered, copies = [], [], [], []
    for number, store in enumerate(stores):
        type_, target = storage_type(store.dtype, Device.CPU), cpp_name(store.name)
        direct.append(printer.assign(store, Device.CPU))
        if store.coord.coef((last, 0)) == 1:
            base = printer.address(store.coord, without=last)
            buffers.append(f"alignas(64) {type_} y{number}[TILE];")
            buffered.append(f"y{number}[{place}] = narrow<{type_}>({printer.known[store.node]});")
            copies.append(f"stream_copy({target} + {base} + begin, y{number}, count * sizeof({type_}));")
        else:
            buffered.append(direct[-1])
    return {"buffers": buffers, "direct_stores": direct, "buffered_stores": buffered, "copies": copies}


def kernel_step(
    work: Kernel,
    outputs: tuple[Buffer, ...],
    device: Device,
    name: str,
    text: str,
    settings: int,
    *,
    scratch_bytes: int = 0,
    reduces: bool = False,
    more_files: Mapping[str, str] | None = None,
) -> Step:
    """Returns the step that launches a printed kernel, whose tunable has this number of settings."""
    scratch: tuple[Buffer, ...] = ()
    if scratch_bytes:
        scratch = (Buffer(f"{name}_scratch", TensorMeta(shape=(scratch_bytes,), dtype="uint8", strides=(1,))),)
    pointers, call = launcher(work, device, name, [("void", buffer.name) for buffer in scratch])
    stream = ", cudaStream_t stream" if device is Device.CUDA else ""
    returns = "int" if notes_values(work, device) else "void"
    return Step(
        name=name,
        inputs=work.reads,
        outputs=outputs,
        files={**kernel_files(device, name, text, reduces=reduces), **(more_files or {})},
        declaration=f'extern "C" {returns} launch_{name}({pointers}, int config{stream});',
        call=call,
        tunables={name: settings},
        scratch=scratch,
    )


def printed(template: str, work: Kernel, device: Device, name: str, **values: object) -> str:
    """Returns the text of a kernel by a template, which also has the values that all templates need."""
    return render(template, {**common(work, device, name), **values})


def common(work: Kernel, device: Device, name: str, *, scratch: bool = False) -> dict[str, object]:
    """Returns the values that the templates of all kernels need."""
    pointers, _ = launcher(work, device, name, SCRATCH if scratch else ())
    pairs = parameters(work, device)
    made = ", ".join(cpp_name(name) for name, _ in work.writes)
    checks = notes_values(work, device)
    # Pointers that cross as void* get their types.
    casts = [f"auto* {name}_p = static_cast<{type_}>({name});" for type_, name in pairs]
    return {
        "work": work,
        "name": name,
        "title": f"{made} from {', '.join(map(cpp_name, work.reads)) or 'constants'}",
        "parameters": ", ".join([*(f"{t} __restrict__ {n}" for t, n in pairs), *["int* status"] * checks]),
        "parameters_plain": ", ".join(f"{t} {n}" for t, n in pairs),
        "arguments": ", ".join([*(f"{n}_p" for _, n in pairs), *["&status"] * checks]),
        "names": ", ".join(n for _, n in pairs),
        "launcher_parameters": pointers,
        "casts": [*casts, *["int status = 0;"] * checks],
        # In every thread's share of the work `bad` collects what is wrong with values, which the launcher returns.
        "notes": ["int bad = 0;", "const Note note{status, bad};"] * checks,
        "also": " reduction(| : bad)" * checks,
        "returns": "int" if checks else "void",
        "returned": ["return status;"] * checks,
        "axes": " x ".join(map(str, work.axes())),
        "large": sum(ir.ITEM_BYTES[s.dtype] for s in work.full_stores) * ir.numel(work.axes()) >= _LARGE_BYTES,
        "rows": ir.numel(work.rows),
        "cols": ir.numel(work.cols),
        "row_axes": " x ".join(map(str, work.rows)) or "none",
        "col_axes": " x ".join(map(str, work.cols)),
        "index_type": index_type(work),
    }


def index_type(work: Kernel) -> str:
    """Returns `int` where every address and position fits into 32 bits, else `long long`."""
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
