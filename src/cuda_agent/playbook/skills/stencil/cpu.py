"""Windows in C++: a thread computes what its tile's windows share once into its cache, then takes row after row of
outputs, one vector lane an output."""

from typing import Any

from cuda_agent.core.enums import Device
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import Printer
from cuda_agent.playbook.coords import Bound
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.skills.shared.states import COMBINE
from cuda_agent.playbook.skills.stencil.window import Stencil, printed_windows, tile_bytes, tile_sizes

#: outputs of a tile
_TARGETS = (2048, 8192, 32768)
_WIDE = 2048
_CACHE_BYTES = 256 << 10


class _Cpu:
    """Prints one kernel."""

    def __init__(self, stencil: Stencil) -> None:
        self.stencil, self.work = stencil, stencil.work

    def _printer(
        self, work: Kernel, lane: str, tap: int | None = None, skip: frozenset[Bound] = frozenset()
    ) -> Printer:
        """A printer for `work` whose index on the last axis is `lane`, `tap` the tap of that axis where it is a number;
        the bounds `skip` hold anyway."""
        st = self.stencil
        slide = st.slides.get(st.last)

        def axis(k: int) -> str:
            if k == st.last:
                return lane
            if slide is not None and k == slide.tap and tap is not None:
                return str(tap)
            return f"i{k}" if k < st.rows else f"t{k}"

        return Printer(work, axis, holding=skip, checks=True)

    def _inner(self) -> tuple[frozenset[Bound], int | None, int | None]:
        """Guards that hold for a range of positions along the last axis, and that range: in between they needn't be
        tested."""
        along = (self.stencil.last, 0)
        bounds = {
            bound
            for expr in self.stencil.stage.nodes
            for bound in expr.guards
            if [dim for dim, _ in bound.coord.terms] == [along]
            and bound.coord.coef(along) == 1
            and not bound.coord.dynamic
        }
        lows = [b.low - b.coord.const for b in bounds if b.low is not None]
        highs = [b.high - b.coord.const for b in bounds if b.high is not None]
        return frozenset(bounds), max(lows, default=None), min(highs, default=None)

    def stage_parts(self) -> list[dict[str, Any]]:
        """Returns the loops over the positions of a staged row."""
        st = self.stencil
        bounds, low, high = self._inner()
        start = f"first{st.last} * {st.slides[st.last].stride if st.last in st.slides else 1}"
        ends = [f"clamped({end} - {start}, 0, extent{st.last})" if end is not None else None for end in (low, high)]
        begin, end = ends[0] or "0", ends[1] or f"extent{st.last}"
        parts = [(begin, end, bounds)]
        if low is not None:
            parts.append(("0", begin, frozenset()))
        if high is not None:
            parts.append((f"larger({begin}, {end})", f"extent{st.last}", frozenset()))
        result = []
        for first, last, skip in parts:
            printer = self._printer(st.stage, f"({start} + q)", skip=skip)
            lines = printer.statements(list(st.staged.values()))
            lines += [f"row{at}[q] = {printer.known[root]};" for at, root in st.staged.items()]
            result.append({"begin": first, "end": last, "body": lines})
        return result

    def tap_body(self) -> list[str]:
        """Returns the statements of all taps along the last axis for output j."""
        st, work = self.stencil, self.work
        slide = st.slides.get(st.last)
        stride, dilation, taps = (slide.stride, slide.dilation, slide.taps) if slide else (1, 0, 1)
        lines = [f"{st.type(at)} a{at} = r{at}[j];" for at in st.reduces]
        for tap in range(taps):
            printer = self._printer(work, f"(first{st.last} + j)", tap)
            for at in st.staged:
                printer.known[at] = f"w{at}[j * {stride} + {tap * dilation}]"
            for at in st.tables:
                printer.known[at] = f"h{at}[{self._factor(self._tap(tap))}]"
            inner = printer.statements(st.bodies)
            for at in st.reduces:
                expr = work.nodes[at]
                inner.append(f"a{at} = {COMBINE[expr.name]}(a{at}, {printer.known[expr.args[0]]});")
            lines += inner if len(inner) == len(st.reduces) else ["{", *(f"  {line}" for line in inner), "}"]
        return [*lines, *(f"r{at}[j] = a{at};" for at in st.reduces)]

    def _factor(self, tap: str) -> str:
        """Returns the index of a tap's factor in its table, which is innermost along channels or along taps."""
        plane = self.stencil.plane
        if plane == self.stencil.last:
            return f"({tap}) * T{plane} + j"
        return tap if plane is None else f"o{plane} * TAPS + {tap}"

    def _tap(self, last: int) -> str:
        st = self.stencil
        slide = st.slides.get(st.last)
        parts = []
        for k, step in enumerate(ir.contiguous(self.work.cols), st.rows):
            parts.append(str(last * step) if slide is not None and k == slide.tap else f"t{k} * {step}")
        return " + ".join(parts)

    def tables(self) -> list[str]:
        printer = self._printer(self.work, f"i{self.stencil.last}")
        lines = printer.statements(self.stencil.tables)
        return [*lines, *(f"h{at}[at] = {printer.known[at]};" for at in self.stencil.tables)]

    def result_body(self) -> list[str]:
        """Returns statements that compute and write results from the reduced windows."""
        printer = self._printer(self.work, f"(first{self.stencil.last} + j)")
        for at in self.stencil.reduces:
            printer.known[at] = f"r{at}[j]"
        return printer.stored(self.work.stores, Device.CPU)

    def _row(self, at: int) -> str:
        """Declares a pointer to the part of a staged row that the outputs of one row of the tile read."""
        st = self.stencil
        start = "0"
        for k in st.held:
            slide = st.slides.get(k)
            if k == st.last:
                start = f"({start}) * E{k}"
            else:
                position = f"o{k} * {slide.stride} + t{slide.tap} * {slide.dilation}" if slide else f"o{k}"
                start = position if start == "0" else f"({start}) * E{k} + {position}"
        return f"const {st.type(at)}* w{at} = s{at} + {start};"

    def values(self) -> dict[str, object]:
        st, row = self.stencil, "0"
        for k in st.held[:-1]:
            row = f"({row}) * E{k} + p{k}" if row != "0" else f"p{k}"
        texts = {"tap_body": self.tap_body(), "result_body": self.result_body(), "table_fill": self.tables()}
        windows = [self._row(at) for at in st.staged]
        return {"stage_row": row, "stage_parts": self.stage_parts(), "windows": windows, **texts}


def source(stencil: Stencil, name: str) -> tuple[str, int] | None:
    """Returns (source, number of settings), or None where a tile of one row is larger than the caches."""
    configs: list[tuple[int, ...]] = []
    for target in _TARGETS:
        sizes = tile_sizes(stencil, target, 1, _WIDE)
        config = tuple(sizes[k] for k in stencil.tiled)
        if tile_bytes(stencil, sizes) <= _CACHE_BYTES and config not in configs:
            configs.append(config)
    if not configs:
        return None
    text = printed_windows(
        "stencil/stencil.cpp.j2", stencil, Device.CPU, name, configs=configs, **_Cpu(stencil).values()
    )
    return text, len(configs)
