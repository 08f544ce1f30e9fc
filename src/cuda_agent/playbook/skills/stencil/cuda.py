"""Windows on CUDA: a block computes what its tile's windows share once into shared memory, then each thread takes
several neighbouring outputs and holds the part of a row that their windows cover in registers."""

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import Printer, common_width, is_aligned
from cuda_agent.playbook.coords import Bound, Coord
from cuda_agent.playbook.expression import Expr
from cuda_agent.playbook.kernel import children
from cuda_agent.playbook.skills.shared.lanes import Lanes
from cuda_agent.playbook.skills.shared.states import OPS
from cuda_agent.playbook.skills.stencil.window import Stencil, printed_windows, tile_bytes, tile_sizes

#: (threads, outputs a thread, outputs a tile); 16-bit results begin with the second.
_SETTINGS = ((256, 4, 2048), (256, 8, 2048), (128, 4, 1024), (256, 8, 4096), (128, 8, 2048), (128, 4, 512))
_WIDE = 128
_SHARED_BYTES = 46 << 10
#: a row of a window beyond this many registers is read from shared memory element by element.
_ROW_REGISTERS = 64
#: outputs below which tiles are made smaller, so that every multiprocessor has some.
_FEW_TILES = 4 * 132


class _Stage(Lanes):
    """Prints what is staged, for WIDTH neighbouring positions."""

    def is_late(self, expr: Expr) -> bool:
        """Returns whether a load isn't early. A guard holds for a whole vector or for none of it."""
        axis = (self.along, 0)
        guarded = any(b.coord.dynamic or (self.width > 1 and b.coord.coef(axis) not in (0, 1)) for b in expr.guards)
        return bool(expr.coord.dynamic) or expr.coord.coef(axis) not in (0, 1) or guarded


def _stage_width(stencil: Stencil) -> tuple[int, int]:
    """Returns (elements of a vector, positions from the first vector of a tile to its first window)."""
    along = (stencil.last, 0)
    loads = [e for e in stencil.stage.nodes if e.op == "load" and e.coord.coef(along) == 1]
    if not loads:
        return 1, 0
    width = min(8, 16 // min(ir.ITEM_BYTES[e.dtype] for e in loads))
    while width > 1:
        shift = loads[0].coord.const % width
        if all(
            not e.coord.dynamic
            and is_aligned(width, e.coord.plus(Coord(const=-shift)), stencil.last)
            and _is_uniform(e, along, width, shift)
            for e in loads
        ):
            return width, shift
        width //= 2
    return 1, 0


def _is_uniform(expr: Expr, along: tuple[int, int], width: int, shift: int) -> bool:
    """Returns whether every guard holds for a whole vector or for none of it."""

    def holds(bound: Bound) -> bool:
        coef = bound.coord.coef(along)
        if coef == 0 or bound.coord.dynamic:
            return not bound.coord.dynamic
        others = all(c % width == 0 for dim, c in bound.coord.terms if dim != along)
        ends = (bound.low or 0) % width == 0 and (bound.high or 0) % width == 0
        return coef == 1 and others and ends and (bound.coord.const - shift) % width == 0

    return all(holds(bound) for bound in expr.guards)


def _store_width(stencil: Stencil) -> int:
    """Returns the vector width of results and of the loads beside them."""
    work, along = stencil.work, (stencil.last, 0)
    coords = [(s.coord, s.dtype) for s in work.stores if s.coord.coef(along) == 1]
    epilogue = Printer(work, str, lambda at, expr: "", known=dict.fromkeys(stencil.reduces, ""))
    for at in epilogue.needed([s.node for s in work.stores]):
        expr = work.nodes[at]
        if expr.op == "load" and expr.coord.coef(along) == 1:
            coords.append((expr.coord, expr.dtype))
    return common_width(coords, work.rows[stencil.last], stencil.last) if coords else 1


def _configs(stencil: Stencil, shift: int, multiple: int) -> list[tuple[int, ...]]:
    """Returns (threads, outputs a thread, sizes of the tile) for each setting, none where no tile fits."""
    settings = list(_SETTINGS)
    if all(ir.ITEM_BYTES[s.dtype] < 4 for s in stencil.work.stores):
        settings[:2] = settings[1::-1]
    outputs = ir.numel(stencil.work.rows)
    while outputs < settings[0][2] * _FEW_TILES and settings[0][2] > 256:
        settings = [(threads, own, max(256, target // 2)) for threads, own, target in settings]
    found: list[tuple[int, ...]] = []
    for threads, own, target in settings:
        while True:
            sizes = tile_sizes(stencil, target, 8, _WIDE)
            if tile_bytes(stencil, sizes, multiple, shift) <= _SHARED_BYTES:
                enough = -(-ir.numel(list(sizes.values())) // (own * 32)) * 32
                config = (min(threads, max(64, enough)), own, *(sizes[k] for k in stencil.tiled))
                found += [config] if config not in found else []
                break
            if target < 16:
                break
            target //= 2
    return found


class _Cuda:
    """Prints one kernel."""

    def __init__(self, stencil: Stencil) -> None:
        self.stencil, self.work = stencil, stencil.work
        self.width, self.shift = _stage_width(stencil)
        self.multiple = max(self.width, 4)
        self.configs = _configs(stencil, self.shift, self.multiple)
        self.store_width = _store_width(stencil)

    def staging(self) -> dict[str, object]:
        """Returns the values that print what a tile's windows share."""
        st = self.stencil
        lanes = _Stage(st.stage, self.width, st.last)
        roots = list(st.staged.values())
        declarations, loads = lanes.early(range(len(st.stage.nodes)))
        for at, expr in enumerate(st.stage.nodes):
            if expr.op == "inside" and _is_uniform(expr, (st.last, 0), self.width, self.shift):
                lanes.printer.known[at] = f"({lanes.scalar.test(expr.guards)})"
        words = sum(self.width * lanes.words(at) for at in lanes.texts)
        body = lanes.printer.statements(roots)
        body += [f"y{at}.v[j] = {lanes.printer.known[root]};" for at, root in st.staged.items()]
        return {
            "stage_unroll": max(1, min(4, int(32 // max(words, 1)))),
            "stage_declarations": declarations,
            "stage_loads": loads,
            "stage_body": body,
        }

    def tables(self) -> dict[str, object]:
        """Returns statements that compute the factors of the taps at position `at`, and their values."""
        printer = Printer(self.work, self._axis, self._load)
        lines = printer.statements(self.stencil.tables)
        return {"table_body": lines, "table_values": {at: printer.known[at] for at in self.stencil.tables}}

    def _axis(self, k: int) -> str:
        return f"i{k}" if k < self.stencil.rows else f"t{k}"

    def _lane(self, k: int) -> str:
        return f"(i{k} + j)" if k == self.stencil.last else self._axis(k)

    def _load(self, at: int, expr: Expr) -> str:
        return Printer(self.work, self._axis, self._load).read(expr)

    def windows(self) -> dict[str, object]:
        """The loops over taps for a thread's outputs."""
        st, work = self.stencil, self.work
        slide = st.slides.get(st.last)
        stride, dilation = (slide.stride, slide.dilation) if slide else (1, 0)
        t_last = f"t{slide.tap}" if slide else "0"
        reach = self.shift + 7 * stride + ((slide.taps - 1) * dilation if slide else 0) + 1
        printer = Printer(work, self._lane)
        for at in st.staged:
            printer.known[at] = f"w{at}[SHIFT + j * {stride} + {t_last} * {dilation}]" if slide else f"w{at}[SHIFT + j]"
        for at in st.tables:
            printer.known[at] = f"f{at}[j]" if st.plane == st.last else f"f{at}"
        steady, body = self._split(printer)
        for at in st.reduces:
            value = printer.known[work.nodes[at].args[0]]
            body.append(f"r{at}[j] = {OPS[work.nodes[at].name].format(a=f'r{at}[j]', b=value)};")
        return {
            "in_registers": reach <= _ROW_REGISTERS,
            "rows": {at: f"s{at} + {self._row()}" for at in st.staged},
            "tap": " + ".join(f"t{st.rows + k} * {step}" for k, step in enumerate(ir.contiguous(work.cols))),
            "tap_steady": steady,
            "tap_body": body,
            "row_length": f"(SHIFT + (OUT - 1) * {stride} + {(slide.taps - 1) * dilation if slide else 0} + 4) / 4 * 4",
        }

    def _split(self, printer: Printer) -> tuple[list[str], list[str]]:
        """Statements of a tap: once for all of a thread's outputs, then for each."""
        moving = self.stencil.moving() | set(self.stencil.staged)
        wanted: set[int] = set()
        for at in printer.needed(self.stencil.bodies):
            if at not in moving:
                continue
            wanted.update(c for c in children(self.work.nodes[at]) if c not in moving and c not in printer.known)
        steady = printer.variables(sorted(at for at in wanted if self.work.nodes[at].op != "const"))
        return steady, printer.statements(self.stencil.bodies)

    def reads_beyond(self) -> bool:
        """Returns whether a tap reads memory for lanes after the last output."""
        st, work = self.stencil, self.work
        printer = Printer(work, self._lane, self._load, known=dict.fromkeys((*st.staged, *st.tables), ""))
        loads = [work.nodes[at] for at in printer.needed(st.bodies) if work.nodes[at].op == "load"]
        moving = [e for e in loads if e.coord.coef((st.last, 0)) or e.coord.dynamic]
        return bool(moving) and work.rows[st.last] % 8 > 0

    def _row(self) -> str:
        """Returns the first position of the thread's outputs in a staged row."""
        start = "0"
        for k in self.stencil.held:
            slide = self.stencil.slides.get(k)
            position = f"o{k} * {slide.stride}" if slide else f"o{k}"
            if slide and k != self.stencil.last:
                position += f" + t{slide.tap} * {slide.dilation}"
            start = position if start == "0" else f"({start}) * E{k} + {position}"
        return start

    def epilogue(self) -> dict[str, object]:
        """Returns the values that print results from the reduced windows."""
        st, work = self.stencil, self.work
        lanes = Lanes(work, self.store_width, st.last)
        lanes.printer.known = {at: f"r{at}[v + j]" for at in st.reduces}
        needed = lanes.printer.needed([s.node for s in work.stores])
        early = [at for at in needed if work.nodes[at].op == "load" and not lanes.is_late(work.nodes[at])]
        before = lanes.local(early, "x")
        body = lanes.printer.statements([s.node for s in work.stores])
        declarations, stores = lanes.write(work.stores, body)
        return {"result_loads": [*before, *declarations], "result_body": body, "result_stores": stores}

    def values(self) -> dict[str, object]:
        sizes = {"stage_width": self.width, "store_width": self.store_width, "multiple": self.multiple}
        texts = {**self.staging(), **self.windows(), **self.epilogue(), **self.tables()}
        return {**texts, **sizes, "shift": self.shift, "configs": self.configs}


def source(stencil: Stencil, name: str) -> tuple[str, int] | None:
    """Returns (source, number of settings), or None where no tile fits shared memory."""
    printer = _Cuda(stencil)
    if not printer.configs or printer.reads_beyond():
        return None
    text = printed_windows("stencil/stencil.cu.j2", stencil, Device.CUDA, name, **printer.values())
    return text, len(printer.configs)
