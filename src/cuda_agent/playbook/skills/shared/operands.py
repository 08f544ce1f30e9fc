"""Operands of launchers: windows on values, (batched) matrices in memory, and the step of a launch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from cuda_agent.core.enums import Precision
from cuda_agent.core.graph import Node, TensorMeta
from cuda_agent.playbook import ir
from cuda_agent.playbook.plan import DoesNotApply, Place, PlanState, Step, StridedView

#: precision -> the number of its arithmetic for `launch_gemm`.
MATH = {Precision.FP32: 0, Precision.TF32: 1, Precision.BF16: 2, Precision.FP16: 3}


@dataclass(frozen=True)
class Matrix:
    """`outer` × `batch` matrices of rows × columns in a buffer, from `offset`, all in elements. `transposed`: columns
    are `ld` apart and rows contiguous; otherwise rows are `ld` apart and columns contiguous."""

    buffer: str
    offset: int
    rows: int
    columns: int
    ld: int
    transposed: bool
    batch: int = 1
    batch_stride: int = 0
    outer: int = 1
    outer_stride: int = 0


@dataclass(frozen=True)
class Product:
    """result [m, n] = left [m, k] · right [k, n] + bias [n]; `meta` says where the node's value lies."""

    left: Matrix
    right: Matrix
    bias: StridedView | None
    meta: TensorMeta


def windows(state: PlanState, names: Sequence[str]) -> list[StridedView]:
    """Returns the windows on these values, which are put into memory where they aren't yet. Raises DoesNotApply for a
    value that isn't a window on a buffer, such as a padded value."""
    missing = [name for name in dict.fromkeys(names) if state.strided(name) is None]
    if missing:
        state.require(missing)
    found = []
    for name in names:
        view = state.strided(name)
        if view is None:
            raise DoesNotApply(name)
        found.append(view)
    return found


def only_reader(state: PlanState, name: str) -> Node | None:
    """Returns the node that alone reads this value, None where the graph returns it."""
    users = state.users(name)
    return users[0] if len(users) == 1 and not state.is_output(name) else None


def plain_copy(state: PlanState, name: str) -> StridedView:
    """Makes a row-major copy of a value by a kernel of its own, and returns the window on it."""
    builder, copy = state.builder, state.fresh(f"{name}_plain")
    resolved = builder.resolve(name)
    builder.pointwise("copy", resolved, dtype=builder.values[resolved].dtype, name=copy)
    # Required by name: a copy that isn't in memory yet counts as a view of what it copies.
    state.require([copy])
    return windows(state, [copy])[0]


def readable_windows(
    state: PlanState, names: Sequence[str], is_readable: Callable[[StridedView], bool]
) -> list[StridedView]:
    """Returns the windows on these values, on a row-major copy where a value can't be read where it lies. Raises
    DoesNotApply."""
    views = windows(state, names)
    return [view if is_readable(view) else plain_copy(state, name) for view, name in zip(views, names, strict=True)]


def one_piece(state: PlanState, name: str, multiple: int = 1) -> StridedView:
    """Returns a window on a row-major value whose offset is a multiple of this. Raises DoesNotApply."""

    def is_readable(view: StridedView) -> bool:
        pairs = collapsed(view.shape, view.strides)
        return not pairs or (len(pairs) == 1 and pairs[0][1] == 1 and view.offset % multiple == 0)

    return readable_windows(state, [name], is_readable)[0]


def collapsed(shape: Sequence[int], *strides: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the dimensions as few (size, stride of each operand) as possible, outermost first, without sizes of 1."""
    levels: list[tuple[int, ...]] = []
    for size, *steps in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        if levels and levels[-1][1:] == tuple(size * step for step in steps):
            levels[-1] = (levels[-1][0] * size, *steps)
        else:
            levels.append((size, *steps))
    return levels


def _matrix(view: StridedView, rows: list[tuple[int, ...]], columns: list[tuple[int, ...]]) -> Matrix | None:
    """Returns the matrix of rows and columns that are at most one (size, stride) pair each. Returns None where neither
    has stride 1."""
    if len(rows) > 1 or len(columns) > 1:
        return None
    height, down = rows[0] if rows else (1, 0)
    width, across = columns[0] if columns else (1, 0)
    if 0 in (height, width) or (rows and not down) or (columns and not across):
        return None
    if across == 1 or not columns:
        ld = down if rows else width
        return Matrix(view.buffer, view.offset, height, width, ld, False) if ld >= width else None
    if down == 1 or not rows:
        return Matrix(view.buffer, view.offset, height, width, across, True) if across >= height else None
    return None


def flat_matrix(view: StridedView) -> Matrix | None:
    """Returns [..., K] as one matrix with the leading dimensions as rows."""
    return _matrix(view, collapsed(view.shape[:-1], view.strides[:-1]), collapsed(view.shape[-1:], view.strides[-1:]))


def matrix_in_memory_order(view: StridedView) -> tuple[Matrix, tuple[int, ...]] | None:
    """[..., K] as one matrix whose rows are the leading dimensions in the order in which they lie in memory, which a
    batch that was made the second dimension has changed; and the strides of a result whose rows have that order. None
    where they aren't equally far apart."""
    shape, strides = view.shape[:-1], view.strides[:-1]
    order = sorted(range(len(shape)), key=lambda place: -strides[place])
    matrix = _matrix(
        view,
        collapsed([shape[place] for place in order], [strides[place] for place in order]),
        collapsed(view.shape[-1:], view.strides[-1:]),
    )
    if matrix is None:
        return None
    return matrix, ir.ordered_strides(shape, order)


def batched_matrices(a: StridedView, b: StridedView, batch: Sequence[int]) -> tuple[Matrix, Matrix]:
    """[..., M, K] and [..., K, N], whose leading dimensions broadcast to `batch`, as matrices over one split of the
    batch into two levels. Raises DoesNotApply where they don't lie so."""
    left, right = _one_matrix(a), _one_matrix(b)
    levels = collapsed(batch, _batch_steps(a, len(batch)), _batch_steps(b, len(batch)))
    if left is None or right is None or len(levels) > 2:
        raise DoesNotApply(a.buffer)
    inner = levels[-1] if levels else (1, 0, 0)
    outer = levels[0] if len(levels) == 2 else (1, 0, 0)
    return (
        replace(left, batch=inner[0], batch_stride=inner[1], outer=outer[0], outer_stride=outer[1]),
        replace(right, batch=inner[0], batch_stride=inner[2], outer=outer[0], outer_stride=outer[2]),
    )


def _one_matrix(view: StridedView) -> Matrix | None:
    shape, strides = view.shape, view.strides
    return _matrix(view, collapsed(shape[-2:-1], strides[-2:-1]), collapsed(shape[-1:], strides[-1:]))


def readable(view: StridedView) -> bool:
    """Returns whether the last two dimensions form a matrix that the library can read where it lies."""
    return _one_matrix(view) is not None


def _batch_steps(view: StridedView, rank: int) -> list[int]:
    """Returns the strides along the batch dimensions, 0 where the operand broadcasts."""
    steps = [0 if size == 1 else step for size, step in zip(view.shape[:-2], view.strides[:-2], strict=True)]
    return [0] * (rank - len(steps)) + steps


def product_files() -> dict[str, str]:
    """Returns the source of `launch_gemm`."""
    return {"kernels/gemm.cu": resources.files(__package__).joinpath("gemm.cu").read_text()}


def library_graph_files() -> dict[str, str]:
    """Returns the header with cuDNN's graph interface."""
    return {"kernels/library_graph.h": resources.files(__package__).joinpath("library_graph.h").read_text()}


def checked_call(name: str, call: str, **numbers: Sequence[int]) -> str:
    """Returns the statements that call a launcher and check its status. `numbers` are arrays that the call names."""
    arrays = [f"static const long long {key}[] = {{{', '.join(map(str, row))}}};" for key, row in numbers.items()]
    lines = [*arrays, f"const int status = {call};", f'check_status("{name}", status);']
    return "\n".join(["{", *(f"  {line}" for line in lines), "}"])


def launch_step(
    name: str,
    launcher: str,
    arguments: Mapping[str, str],
    numbers: Mapping[str, Sequence[int]],
    *,
    more: Mapping[str, str] | None = None,
    config: str = "",
    **parts: Any,
) -> Step:
    """Returns the step that calls a launcher whose result is a status. `arguments` are its parameters, declaration in C
    -> text of the argument; a name alone is a pointer to an operand. The arrays `numbers` and the parameters `more`
    follow, then for a step with a tunable the setting, by default that of its first tunable, and the stream."""
    config = config or "".join(f"config_{tunable}" for tunable in parts["tunables"])
    given = {key if " " in key else f"const void* {key}": text for key, text in arguments.items()}
    given |= {f"const long long* {key}": key for key in numbers} | dict(more or {})
    given |= {"int config": config, "cudaStream_t stream": "stream"} if config else {}
    return Step(
        name=name,
        declaration=f'extern "C" int {launcher}({", ".join(given)});',
        call=checked_call(name, f"{launcher}({', '.join(given.values())})", **numbers),
        **parts,
    )


def buffers(views: Iterable[Place | None]) -> tuple[str, ...]:
    """Returns the buffers of windows, each once."""
    return tuple(dict.fromkeys(view.buffer for view in views if view is not None))
