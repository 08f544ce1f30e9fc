"""What a kernel over sliding windows consists of: values at positions, which neighbouring windows share and a tile
keeps; factors of the taps alone; and what is left to compute for every output and tap."""

from dataclasses import dataclass, field

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import reached
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import C_TYPES
from cuda_agent.playbook.coords import Coord
from cuda_agent.playbook.expression import Expr
from cuda_agent.playbook.kernel import Kernel, children
from cuda_agent.playbook.skills.shared.geometry import MOST_TAPS
from cuda_agent.playbook.skills.shared.launchers import printed
from cuda_agent.playbook.skills.shared.states import reduction

_KINDS = ("sum", "max", "min")
BYTES = {"f32": 4, "i32": 4, "f64": 8, "i64": 8, "b": 1}


@dataclass(frozen=True)
class Slide:
    """The window slides along row axis `axis`; `taps` elements of it, counted by axis `tap`, meet the positions
    stride · i + dilation · t."""

    axis: int
    tap: int
    stride: int
    dilation: int
    taps: int

    def extent(self, outputs: int) -> int:
        """Returns the positions that this many neighbouring windows cover."""
        return (outputs - 1) * self.stride + (self.taps - 1) * self.dilation + 1


@dataclass
class Stencil:
    """`staged`: nodes of `work` that depend on positions only -> the same in `stage`, a kernel whose axes are the rows
    of `work`, those that slide counted in positions. `tables`: nodes that depend on taps and on rows that don't slide.
    """

    work: Kernel
    slides: dict[int, Slide]
    reduces: tuple[int, ...]
    staged: dict[int, int] = field(default_factory=dict)
    tables: tuple[int, ...] = ()
    stage: Kernel = field(default_factory=lambda: Kernel((), (), (), ()))

    @property
    def rows(self) -> int:
        return len(self.work.rows)

    @property
    def last(self) -> int:
        """The axis along which a thread has neighbouring outputs."""
        return self.rows - 1

    @property
    def bodies(self) -> list[int]:
        return [self.work.nodes[at].args[0] for at in self.reduces]

    @property
    def plane(self) -> int | None:
        """The innermost axis that doesn't slide."""
        return next((k for k in reversed(range(self.rows)) if k not in self.slides), None)

    @property
    def tiled(self) -> tuple[int, ...]:
        """Row axes of which a tile holds more than one index, outermost first."""
        return tuple(k for k in range(self.rows) if k in self.slides or k == self.plane)

    @property
    def outer(self) -> tuple[int, ...]:
        return tuple(k for k in range(self.rows) if k not in self.tiled)

    @property
    def held(self) -> tuple[int, ...]:
        """Tiled axes along which staged values change."""
        used = {k for expr in self.stage.nodes for k in _axes_of(expr)}
        return tuple(k for k in self.tiled if k in used or k == self.last)

    @property
    def taps(self) -> int:
        return ir.numel(self.work.cols)

    def extent(self, axis: int, outputs: int) -> int:
        return self.slides[axis].extent(outputs) if axis in self.slides else outputs

    def type(self, at: int) -> str:
        return C_TYPES[self.work.nodes[at].type]

    def moving(self) -> set[int]:
        """Returns the nodes whose value changes along the last axis, reductions included."""
        found = set(self.reduces)
        for at, expr in enumerate(self.work.nodes):
            if self.last in _axes_of(expr) or any(child in found for child in children(expr)):
                found.add(at)
        return found


def _axes_of(expr: Expr) -> set[int]:
    return {dim[0] for coord in expr.coords for dim, _ in coord.terms}


def find(work: Kernel) -> Stencil | None:
    """The stencil that a kernel is, or None: other reductions, many taps, rows cut so that a window doesn't step along
    one of them."""
    reduces = tuple(at for at, expr in enumerate(work.nodes) if expr.op == "reduce")
    if not work.rows or not reduces or any(store.full for store in work.stores) or ir.numel(work.cols) > MOST_TAPS:
        return None
    first = work.nodes[reduces[0]].guards
    if any(work.nodes[at].guards != first or work.nodes[at].name not in _KINDS for at in reduces):
        return None
    slides = [_slide(work, bound.coord) for bound in first]
    known = {slide.axis: slide for slide in slides if slide is not None}
    columns = set(range(len(work.rows), len(work.axes())))
    if None in slides or len(known) != len(slides) or {slide.tap for slide in known.values()} != columns:
        return None
    result = Stencil(work, known, reduces)
    _divide(result)
    return result if result.staged else None


def _slide(work: Kernel, position: Coord) -> Slide | None:
    rows = [(dim[0], coef) for dim, coef in position.terms if dim[0] < len(work.rows)]
    taps = [(dim[0], coef) for dim, coef in position.terms if dim[0] >= len(work.rows)]
    if len(rows) != 1 or len(taps) != 1 or rows[0][1] <= 0 or taps[0][1] <= 0:
        return None
    return Slide(rows[0][0], taps[0][0], rows[0][1], taps[0][1], work.axes()[taps[0][0]])


def _divide(stencil: Stencil) -> None:
    """Finds the staged nodes and the tables, and builds the kernel of the staged nodes."""
    work = stencil.work
    full = work.full()
    slid: dict[int, bool] = {}
    still: dict[int, bool] = {}
    for at, expr in enumerate(work.nodes):
        inner = children(expr)
        fixed = expr.op == "reduce"
        slid[at] = not fixed and all(_at_positions(stencil, c) for c in expr.coords) and all(slid[c] for c in inner)
        still[at] = not fixed and not _axes_of(expr) & set(stencil.slides) and all(still[c] for c in inner)
    tables: set[int] = set()
    staged: set[int] = set()
    stack, seen = stencil.bodies, set()
    while stack:
        at = stack.pop()
        if at in seen or at not in full:
            continue
        seen.add(at)
        if slid[at]:
            staged.add(at)
        elif still[at]:
            tables.add(at)
        else:
            stack += children(work.nodes[at])
    order = sorted(reached(staged, lambda at: children(work.nodes[at])))
    numbers = {old: new for new, old in enumerate(order)}
    nodes = tuple(_at_stage(stencil, work.nodes[at], numbers) for at in order)
    sizes = tuple(stencil.extent(k, size) for k, size in enumerate(work.rows))
    stencil.staged = {at: numbers[at] for at in sorted(staged)}
    stencil.tables = tuple(sorted(tables))
    stencil.stage = Kernel(nodes, (), (), sizes)


def _at_positions(stencil: Stencil, coord: Coord) -> bool:
    """Returns whether the sliding axes and their taps enter only as positions."""
    for slide in stencil.slides.values():
        row, tap = coord.coef((slide.axis, 0)), coord.coef((slide.tap, 0))
        if row * slide.dilation != tap * slide.stride or row % slide.stride:
            return False
    return True


def _at_stage(stencil: Stencil, expr: Expr, numbers: dict[int, int]) -> Expr:
    def moved(coord: Coord) -> Coord:
        terms = []
        for dim, coef in coord.terms:
            slide = stencil.slides.get(dim[0])
            if dim[0] < stencil.rows:
                terms.append((dim, coef // slide.stride if slide is not None else coef))
        return Coord(tuple(terms), coord.const, tuple((numbers[n], coef) for n, coef in coord.dynamic))

    return expr.mapped(numbers.__getitem__, moved)


def tile_sizes(stencil: Stencil, target: int, outputs: int, wide: int) -> dict[int, int]:
    """Outputs of a tile along each tiled axis, about `target` in all, at most `wide` along the last one where others
    slide too. Pieces of an axis are of nearly the same size, along the last axis a multiple of `outputs`."""
    order = [stencil.last, *(k for k in reversed(stencil.tiled) if k in stencil.slides and k != stencil.last)]
    order += [k for k in stencil.tiled if k not in order]
    sizes, left = {}, target
    for k in order:
        size = stencil.work.rows[k]
        cap = left
        if k == stencil.last and len(stencil.slides) > (k in stencil.slides):
            cap = min(left, wide)
        pieces = -(-size // cap)
        sizes[k] = -(-size // pieces)
        if k == stencil.last:
            sizes[k] = -(-sizes[k] // outputs) * outputs
        left = max(1, left // sizes[k])
    return sizes


def tile_bytes(stencil: Stencil, sizes: dict[int, int], multiple: int = 4, shift: int = 0) -> int:
    """Returns the bytes that a tile of these sizes keeps: the staged positions, whose rows begin `shift` positions
    earlier and are padded to a multiple, and the factors of the taps."""
    positions, factors = 1, stencil.taps * (sizes[stencil.plane] if stencil.plane is not None else 1)
    for k in stencil.held:
        extent = stencil.extent(k, sizes[k])
        positions *= -(-(shift + extent) // multiple) * multiple if k == stencil.last else extent
    parts = ((stencil.staged, positions), (stencil.tables, factors))
    return sum(BYTES[stencil.work.nodes[at].type] * count for nodes, count in parts for at in nodes)


def printed_windows(template: str, stencil: Stencil, device: Device, name: str, **values: object) -> str:
    """Returns the text of a kernel over windows by a template."""
    work, slides = stencil.work, sorted(stencil.slides.values(), key=lambda slide: slide.axis)
    values |= {
        "st": stencil,
        "bytes": BYTES,
        "slides": slides,
        "axes_tiled": [_tiled(stencil, k) for k in stencil.tiled],
    }
    reduces = [reduction(work, at, {}) for at in stencil.reduces]
    outer = ir.numel([work.rows[k] for k in stencil.outer])
    return printed(template, work, device, name, reduces=reduces, outer=outer, **values)


def _tiled(stencil: Stencil, k: int) -> dict[str, object]:
    """Returns the values of a tiled axis for the templates."""
    slide, size = stencil.slides.get(k), stencil.work.rows[k]
    return {
        "k": k,
        "size": size,
        "limit": stencil.extent(k, size),
        "extent": f"(T{k} - 1) * {slide.stride} + {(slide.taps - 1) * slide.dilation + 1}" if slide else f"T{k}",
        "stride": slide.stride if slide else 1,
        "is_held": k in stencil.held,
        "is_last": k == stencil.last,
    }
