"""The CUDA printer of all skills: a thread's WIDTH neighbouring elements, read and written as vectors."""

from collections.abc import Iterable, Sequence

from cuda_agent.core.enums import Device
from cuda_agent.core.graph import reached
from cuda_agent.playbook import ir
from cuda_agent.playbook.codegen import Printer, common_width, is_aligned, storage_type, vector_width
from cuda_agent.playbook.coords import Coord
from cuda_agent.playbook.expression import Expr
from cuda_agent.playbook.kernel import Kernel, Store, children
from cuda_agent.playbook.names import cpp_name

#: times that each element is read, from which on the caches deliver them and lanes save instructions.
_AGAIN = 2


def lane_width(work: Kernel, along: int, cap: int = 8) -> tuple[int, bool]:
    """Returns the number of lanes, and whether some loads aren't aligned to it. Where every element is read several
    times, as by sliding windows, the results alone decide the number."""
    width, sizes = vector_width(work, along, cap), work.axes()
    for expr in work.nodes:
        if expr.op == "load":
            reach = 1 + sum(abs(coef) * (sizes[axis] - 1) for (axis, _), coef in expr.coord.terms)
            if expr.coord.dynamic or _AGAIN * reach > ir.numel(sizes):
                return width, False
    stores = [(store.coord, store.dtype) for store in work.stores if store.coord.coef((along, 0)) == 1]
    wider = common_width(stores, sizes[along], along, cap) if stores else 1
    return max(width, wider), wider > width


class Lanes:
    """Prints the nodes of one kernel for the lanes j < WIDTH along the axis `along`. In the generated code `i<k>` is
    the index on axis k, that of lane 0 where k is `along`."""

    def __init__(self, work: Kernel, width: int, along: int, *, crooked: bool = False) -> None:
        """With `crooked`, loads that are contiguous but not aligned to the width are read lane by lane."""
        self.work, self.width, self.along, self.crooked = work, width, along, crooked
        self.full = work.full()
        self.rows = len(work.rows)
        self.moving = self._moving()
        #: texts of the loads that are variables already
        self.texts: dict[int, str] = {}
        self.scalar = Printer(work, lambda k: f"i{k}", lambda at, expr: self._load(at, expr, self.scalar))
        self.printer = Printer(work, self._lane, lambda at, expr: self._load(at, expr, self.printer))

    def _moving(self) -> frozenset[int]:
        """Returns the nodes whose value changes from lane to lane."""
        found: set[int] = set()
        for at, expr in enumerate(self.work.nodes):
            over = expr.op == "reduce" and self.along >= self.rows
            moves = expr.op == "scan" or any(coord.coef((self.along, 0)) for coord in expr.coords)
            if not over and (moves or any(child in found for child in children(expr))):
                found.add(at)
        return frozenset(found)

    def _lane(self, axis: int) -> str:
        return f"(i{axis} + j)" if axis == self.along and self.width > 1 else f"i{axis}"

    def _load(self, at: int, expr: Expr, printer: Printer) -> str:
        return self.texts[at] if at in self.texts else printer.read(expr)

    def is_late(self, expr: Expr) -> bool:
        """Returns whether the lanes read neither neighbouring elements nor all the same one, or where they read is
        known after a reduction only."""
        axis = (self.along, 0)
        moving_guard = any(b.coord.coef(axis) or b.coord.dynamic for b in expr.guards)
        nodes = self.work.nodes
        deciding = reached((node for node, _ in expr.coord.dynamic), lambda at: children(nodes[at]))
        looked_up = any(at in self.moving or nodes[at].op in ("reduce", "scan") for at in deciding)
        alone = self.crooked and expr.coord.coef(axis) == 1 and not self.is_vector(expr.coord)
        return looked_up or expr.coord.coef(axis) not in (0, 1) or moving_guard or alone

    def is_vector(self, coord: Coord) -> bool:
        contiguous = self.width > 1 and coord.coef((self.along, 0)) == 1
        return contiguous and (not self.crooked or is_aligned(self.width, coord, self.along))

    def variable_type(self, expr: Expr) -> str:
        type_ = storage_type(expr.dtype, Device.CUDA)
        return f"Vec<{type_}, WIDTH>" if self.is_vector(expr.coord) else type_

    def pointer(self, at: int) -> str:
        """Returns the address that lane 0 of a load reads."""
        expr = self.work.nodes[at]
        return f"{cpp_name(expr.name)} + {self.scalar.address(expr.coord)}"

    def read(self, at: int, target: str) -> list[str]:
        """Returns statements that read one load into an existing variable."""
        expr = self.work.nodes[at]
        self.scalar.known = {}
        # The indices that decide where the lanes begin are computed in a scope of their own.
        places = self.scalar.variables([node for node, _ in expr.coord.dynamic])
        if places:
            return ["{", *(f"  {line}" for line in [*places, *self._read(expr, target)]), "}"]
        return self._read(expr, target)

    def _read(self, expr: Expr, target: str) -> list[str]:
        buffer, address = cpp_name(expr.name), self.scalar.address(expr.coord)
        value = f"load_vector<WIDTH>({buffer} + {address})" if self.is_vector(expr.coord) else f"{buffer}[{address}]"
        if not expr.guards:
            return [f"{target} = {value};"]
        # `{}` alone fits several assignments of a 16-bit float.
        nothing = "{}" if self.is_vector(expr.coord) else f"static_cast<{self.variable_type(expr)}>(0.0f)"
        return [f"{target} = {nothing};", f"if ({self.scalar.test(expr.guards)}) {target} = {value};"]

    def name_load(self, at: int, variable: str) -> None:
        """Makes later statements take this load's value from a variable."""
        vector = self.is_vector(self.work.nodes[at].coord)
        self.texts[at] = f"widen({variable}.v[j])" if vector else f"widen({variable})"

    def early(self, nodes: Iterable[int], room: str = "[UNROLL]", place: str = "[u]") -> tuple[list[str], list[str]]:
        """Returns declarations of arrays, and the statements that read them, for the nodes that are early loads."""
        declarations, lines = [], []
        for at in nodes:
            expr = self.work.nodes[at]
            if expr.op == "load" and at in self.full and not self.is_late(expr):
                declarations.append(f"{self.variable_type(expr)} x{at}{room};")
                lines += self.read(at, f"x{at}{place}")
                self.name_load(at, f"x{at}{place}")
        return declarations, lines

    def local(self, loads: Iterable[int], letter: str) -> list[str]:
        """Returns statements that read loads into variables of their own."""
        lines = []
        for at in loads:
            lines += [f"{self.variable_type(self.work.nodes[at])} {letter}{at};", *self.read(at, f"{letter}{at}")]
            self.name_load(at, f"{letter}{at}")
        return lines

    def results(self, stores: Sequence[Store], room: str = "[UNROLL]", place: str = "[u]") -> dict[str, list[str]]:
        """Returns the texts that compute and write results: declarations and statements of early loads, declarations
        of result vectors, each lane's statements, and those that write the vectors."""
        roots = [store.node for store in stores]
        declarations, loads = self.early(self.printer.needed(roots), room, place)
        body = self.printer.statements(roots)
        slots, written = self.write(stores, body)
        return {"declarations": declarations, "loads": loads, "slots": slots, "body": body, "stores": written}

    def write(self, stores: Sequence[Store], body: list[str]) -> tuple[list[str], list[str]]:
        """Returns declarations of result vectors and the statements that write them. Adds each lane's statements to
        `body`."""
        declarations, lines = [], []
        for number, store in enumerate(stores):
            if not self.is_vector(store.coord):
                body.append(self.printer.assign(store, Device.CUDA))
                continue
            type_ = storage_type(store.dtype, Device.CUDA)
            declarations.append(f"Vec<{type_}, WIDTH> y{number};")
            body.append(f"y{number}.v[j] = narrow<{type_}>({self.printer.known[store.node]});")
            lines.append(f"store_vector({cpp_name(store.name)} + {self.scalar.address(store.coord)}, y{number});")
        return declarations, lines

    def words(self, at: int) -> float:
        """Returns the registers of 4 bytes that one element of a load or a kept value takes."""
        expr = self.work.nodes[at]
        if expr.op != "load":
            return 2.0 if expr.type in ("f64", "i64") else 1.0
        size = ir.ITEM_BYTES[expr.dtype] / 4
        if self.width == 1:
            return max(1.0, size)
        return size if self.is_vector(expr.coord) else 0.0
