"""A product in half precision in one kernel with the element-wise kernel that alone reads it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from cuda_agent.core.enums import Device
from cuda_agent.core.hashing import digest_text
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import decode, kernel_files, parameters, render, storage_type, vector_width
from cuda_agent.playbook.expression import Expr
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.names import cpp_name
from cuda_agent.playbook.plan import Step, pointer
from cuda_agent.playbook.skills.shared.lanes import Lanes
from cuda_agent.playbook.skills.shared.launchers import index_type
from cuda_agent.playbook.skills.shared.operands import Product, launch_step

#: helper warps, rows, columns, stages, blocks that share B, blocks that share A, and whether sums stay float32.
TILINGS = (
    "3, 128, 256, 3, 2, 1, false",
    "3, 256, 128, 3, 1, 2, false",
    "4, 128, 128, 5, 2, 1, true",
    "4, 128, 192, 4, 2, 1, false",
)
#: elements of a load of 16 bytes. A thread finishes so many neighbouring ones.
WIDTH = 8
#: fewer rows or columns leave most of a tile empty.
_LEAST = 64
#: number of the library's activation -> the statement that computes it.
_ACTIVATIONS = {0: [], 1: ["v[j] = f_relu(v[j]);"], 2: ["v[j] = f_gelu_tanh(v[j]);"]}


class _Place(NamedTuple):
    """Where a kernel's reads of a buffer begin, in elements."""

    buffer: str
    offset: int
    item_bytes: int


def takes(product: Product) -> bool:
    """Returns whether the kernel is written for a product: one matrix of 16-bit floats by the weight of a linear layer,
    with rows of whole 16-byte pieces."""
    a, b = product.left, product.right
    is_one = a.batch * a.outer == 1 and not a.transposed and b.transposed
    numbers = (a.columns, b.columns, a.ld, b.ld, a.offset, b.offset, product.bias.offset if product.bias else 0)
    pieces = all(number % WIDTH == 0 for number in numbers)
    is_large = min(a.rows, b.columns) >= _LEAST
    return is_one and pieces and is_large and product.meta.dtype in ir.HALF_DTYPES


def fused(product: Product, activation: int, work: Kernel, plain: Step, tail: Step) -> Step | None:
    """Returns the step that computes a product and the kernel `work` after it: by the steps `plain` and `tail`, or, in
    its last settings, by one kernel. Returns None where that isn't written for them."""
    (result,) = plain.outputs
    (form, _), starts = work.canonical()
    read = form.reads[work.reads.index(result.name)]
    axes = _axes(form, read, product.left.rows * product.right.columns)
    if axes is None or vector_width(form, axes[-1]) != WIDTH:
        return None
    # Results are written in the order of the product's elements.
    if any(store.coord.coef((axes[-1], 0)) != 1 for store in form.stores):
        return None
    places = [_Place(name, starts[name], ir.ITEM_BYTES[work.dtype(name)]) for name in work.reads]
    if starts[result.name] or any(place.offset * place.item_bytes % 16 for place in places):
        return None
    stem = tail.name.removeprefix("pointwise_")
    name, files = _source(form, read, axes, product, activation, stem)
    operands = {"a": pointer(product.left, 2), "b": pointer(product.right, 2)}
    operands |= {"bias": pointer(product.bias, 2)} if product.bias else {}
    reads = zip(form.reads, places, strict=True)
    operands |= {theirs: pointer(place, place.item_bytes) for theirs, place in reads if theirs != read}
    pairs = zip(form.writes, work.writes, strict=True)
    operands |= {f"void* {theirs}": f"{cpp_name(ours)}.data_ptr()" for (theirs, _), (ours, _) in pairs}
    ((shape, settings),) = plain.tunables.items()
    # Not the tunable of a product of this shape without a tail, which has fewer settings.
    tunable = f"{shape}_{stem}"
    numbers = {"k": product.left.columns, "lda": product.left.ld, "ldb": product.right.ld}
    step = launch_step(
        name,
        f"launch_{name}",
        operands,
        {},
        more={f"long long {key}": str(number) for key, number in numbers.items()},
        config=f"config_{tunable} - {settings}",
        inputs=tuple(dict.fromkeys([*plain.inputs, *(one for one in tail.inputs if one != result.name)])),
        outputs=tail.outputs,
        files={**plain.files, **tail.files, **files},
        tunables={tunable: settings + len(TILINGS), **tail.tunables},
        scratch=(result, *tail.scratch),
    )
    names = {"config": f"config_{tunable}", "own": f"config_{shape}", "settings": settings}
    calls = {"first": plain.call.splitlines(), "second": tail.call.splitlines(), "whole": step.call.splitlines()}
    call = render("gemm/fused.cpp.j2", {**names, **calls}).rstrip()
    declarations = "\n".join([plain.declaration, tail.declaration, step.declaration])
    return replace(step, name=plain.name, declaration=declarations, call=call)


def _axes(work: Kernel, product: str, size: int) -> list[int] | None:
    """Returns the axes in the order in which the product's elements lie, None where the kernel doesn't read each once
    in its place."""
    loads = [expr for expr in work.nodes if expr.op == "load" and expr.name == product]
    if work.rows or len(loads) != 1 or loads[0].guards or loads[0].coord.dynamic or loads[0].coord.const:
        return None
    terms, step = sorted(loads[0].coord.terms, key=lambda term: -term[1]), size
    for (axis, _), coef in terms:
        if coef * work.cols[axis] != step:
            return None
        step = coef
    is_whole = step == 1 and ir.numel(work.cols) == size
    return [axis for (axis, _), _ in terms] if is_whole else None


def _source(
    work: Kernel, read: str, axes: list[int], product: Product, activation: int, stem: str
) -> tuple[str, Mapping[str, str]]:
    """Returns the kernel's name and files. Equal kernels of different layers have equal names."""
    type_ = storage_type(product.meta.dtype, Device.CUDA)
    pairs = [(f"const {type_}*", "bias")] if product.bias is not None else []
    pairs += [pair for pair in parameters(work, Device.CUDA) if pair[1] != read]
    plain = [("const void*" if kind.startswith("const") else "void*", label) for kind, label in pairs]
    plain = [("const void*", "a"), ("const void*", "b"), *plain]
    values = {
        "rows": product.left.rows,
        "columns": product.right.columns,
        "type": type_,
        "index_type": index_type(work),
        "width": WIDTH,
        "members": [f"{kind} {label};" for kind, label in pairs],
        "launcher_parameters": ", ".join(f"{kind} {label}" for kind, label in plain),
        "pointers": ", ".join(label for _, label in plain),
        "casts": ", ".join(f"static_cast<{kind}>({label})" for kind, label in pairs),
        "tilings": TILINGS,
        **_epilogue(work, read, axes, product, activation),
    }
    name = f"product_{stem}_{digest_text(render('gemm/product.cu.j2', {**values, 'name': ''}))[:8]}"
    text = render("gemm/product.cu.j2", {**values, "name": name})
    return name, {
        **kernel_files(Device.CUDA, name, text),
        "kernels/product.cuh": render("gemm/product.cuh.j2", {}),
    }


def _epilogue(work: Kernel, read: str, axes: list[int], product: Product, activation: int) -> dict[str, list[str]]:
    """Returns the texts of the epilogue: members, and the statements that read and compute them."""
    lanes, columns = Lanes(work, WIDTH, axes[-1]), product.right.columns
    split = _first_column(work, axes, columns)
    across = set(axes[split:]) if split is not None else set()
    held = _Held()
    head = list(_ACTIVATIONS[activation])
    if product.bias is not None:
        held.add("column", "x", product.meta.dtype, ["x = load_vector<WIDTH>(bias + col);"], is_vector=True)
        head.insert(0, "v[j] += widen(x.v[j]);")
    for at, expr in enumerate(work.nodes):
        if expr.op == "load" and expr.name == read:
            lanes.texts[at] = "v[j]"
        elif expr.op == "load" and at in lanes.full and not lanes.is_late(expr) and not _is_looked_up(expr):
            moves = {axis for coord in expr.coords for (axis, _), _ in coord.terms}
            owner, is_vector = "column" if moves <= across else "item", lanes.is_vector(expr.coord)
            held.add(owner, f"x{at}", expr.dtype, lanes.read(at, f"x{at}"), is_vector=is_vector)
            lanes.name_load(at, f"x{at}")
    body = lanes.printer.statements([store.node for store in work.stores])
    slots, stores = lanes.write(work.stores, body)
    column_place, place = _indices(work, axes, split, columns)
    return {
        **held.texts, "values": held.values, "column_place": column_place, "place": place, "slots": slots,
        "stores": stores, "body": [*head, *body],
    }  # fmt: skip


class _Held:
    """What the epilogue reads before the product is there, by what needs it: all rows of a column, or one item."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {
            f"{owner}_{part}": [] for owner in ("column", "item") for part in ("members", "loads")
        }
        self.values: list[str] = []

    def add(self, owner: str, name: str, dtype: str, reads: list[str], *, is_vector: bool) -> None:
        """Adds a value with the statements that read it into a variable of this name."""
        type_ = storage_type(dtype, Device.CUDA)
        local = f"Vec<{type_}, WIDTH>" if is_vector else type_
        member = f"Words<{ir.ITEM_BYTES[dtype] * WIDTH}>" if is_vector else type_
        packed, unpacked = ("packed({})", f"unpacked<{type_}, WIDTH>({{}})") if is_vector else ("{}", "{}")
        self.texts[f"{owner}_members"].append(f"{member} {name};")
        self.texts[f"{owner}_loads"] += [f"{local} {name};", *reads, f"{owner}.{name} = {packed.format(name)};"]
        self.values.append(f"const {local} {name} = {unpacked.format(f'{owner}.{name}')};")


def _is_looked_up(expr: Expr) -> bool:
    return any(coord.dynamic for coord in expr.coords)


def _first_column(work: Kernel, axes: list[int], columns: int) -> int | None:
    """Returns the number of axes before those that make up a row of the product, None where an axis crosses rows."""
    sizes = [work.cols[axis] for axis in axes]
    return next((at for at in range(len(axes)) if ir.numel(sizes[at:]) == columns), None)


def _indices(work: Kernel, axes: list[int], split: int | None, columns: int) -> tuple[list[str], list[str]]:
    """Returns the statements that compute the indices from a column, and from a row and a column."""
    if split is None:
        whole = f"(static_cast<Index>(row) * {columns} + col) / WIDTH"
        return [], [f"const Index at = {whole};", *decode(work, axes, "at", "Index", scale=WIDTH)]
    across = ["const Index piece = col / WIDTH;", *decode(work, axes[split:], "piece", "Index", scale=WIDTH)]
    return across, [*decode(work, axes[:split], "row", "Index"), *across]
