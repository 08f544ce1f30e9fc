"""Prints expressions and addresses as C++. CUDA and CPU kernels differ in storage types and headers only."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import jinja2

from cuda_agent.core.assets import tables, word_lists
from cuda_agent.core.enums import Device
from cuda_agent.core.graph import reached
from cuda_agent.playbook import ir
from cuda_agent.playbook.coords import Bound, Coord
from cuda_agent.playbook.expression import INDEXING, Expr
from cuda_agent.playbook.kernel import Kernel, Store, children
from cuda_agent.playbook.names import cpp_name
from cuda_agent.workspace.skills import FOLDERS

_TABLES = tables(__file__)
C_TYPES: dict[str, str] = _TABLES["c_types"]
_HALVES: dict[str, dict[str, str]] = _TABLES["halves"]
#: rough cost in simple instructions. A value that costs 8 or more is kept rather than recomputed.
COSTS = {op: int(cost) for op, _, cost in (word.partition(":") for word in word_lists(__file__)["COSTS"])}
#: functions that are defined in the helper `special`.
SPECIAL = word_lists(__file__)["SPECIAL"]


def storage_type(dtype: str, device: Device) -> str:
    """Returns the C++ type of a dtype in memory."""
    return str(_TABLES["storage"].get(dtype) or _HALVES[device.value][dtype])


def literal(value: ir.Scalar, type_: str) -> str:
    """Returns a constant of a compute type as C++."""
    if type_ == "b":
        return "true" if value else "false"
    if type_ in ("i32", "i64"):
        return f"{int(value)}LL" if type_ == "i64" else str(int(value))
    number = float(value)
    suffix = "f" if type_ == "f32" else ""
    if math.isnan(number):
        return f"static_cast<{C_TYPES[type_]}>(NAN)"
    if math.isinf(number) or (type_ == "f32" and abs(number) > 3.4028235677973366e38):
        return f"{'-' if number < 0 else ''}static_cast<{C_TYPES[type_]}>(INFINITY)"
    text = repr(number)
    return (text if "." in text or "e" in text else f"{text}.0") + suffix


def operation(expr: Expr, args: list[str], types: list[str]) -> str:
    """Returns an operator applied to the texts of its operands, fully parenthesised."""
    op = expr.op
    if op in _TABLES["infix"]:
        return f"({args[0]} {_TABLES['infix'][op]} {args[1]})"
    if op in _TABLES["forms"]:
        return str(_TABLES["forms"][op].format(*args))
    if op == "not":
        return f"(!{args[0]})" if types[0] == "b" else f"({args[0]} == 0)"
    if op == "div" and expr.type in ("i32", "i64"):
        return f"f_quotient({args[0]}, {args[1]})"
    if op == "cast":
        if expr.type == "b":
            return f"({args[0]} != 0)"
        return f"static_cast<{C_TYPES[expr.type]}>({args[0]})"
    return f"f_{op}({', '.join(args)})"


@dataclass
class Printer:
    """Prints the nodes of one kernel. `axis` returns the text of axis k's index, and `load` that of a load (by default
    `read`). `known` are the texts of nodes that are computed already. The bounds `holding` need no test."""

    kernel: Kernel
    axis: Callable[[int], str]
    load: Callable[[int, Expr], str] | None = None
    known: dict[int, str] = field(default_factory=dict)
    holding: frozenset[Bound] = frozenset()
    #: whether values that PyTorch refuses are noted in a variable `bad`.
    checks: bool = False

    def address(self, coord: Coord, *, without: int | None = None) -> str:
        """Returns the text of an address, without the term of axis `without`."""
        parts = [(coef, self.axis(axis)) for (axis, _), coef in coord.terms if axis != without]
        parts += [(coef, self.known[node]) for node, coef in coord.dynamic]
        text = ""
        for coef, name in parts:
            term = name if abs(coef) == 1 else f"{name} * {abs(coef)}"
            text += (f" {'-' if coef < 0 else '+'} " if text else ("-" if coef < 0 else "")) + term
        if coord.const or not text:
            text = f"{text} {'-' if coord.const < 0 else '+'} {abs(coord.const)}" if text else str(coord.const)
        return text

    def test(self, guards: Iterable[Bound]) -> str:
        """Returns the condition that all guards hold."""
        parts = []
        for bound in (bound for bound in guards if bound not in self.holding):
            text = self.address(bound.coord)
            if bound.low is not None:
                parts.append(f"{text} >= {bound.low}")
            if bound.high is not None:
                parts.append(f"{text} < {bound.high}")
        return " && ".join(parts) or "true"

    def read(self, expr: Expr) -> str:
        """Returns the text of a load, with 0 where its guards don't hold."""
        text, test = f"widen({cpp_name(expr.name)}[{self.address(expr.coord)}])", self.test(expr.guards)
        return text if test == "true" else f"(({test}) ? {text} : {literal(0, expr.type)})"

    def assign(self, store: Store, device: Device) -> str:
        """Returns the statement that writes one element of a result, rounded to its stored type."""
        value = f"narrow<{storage_type(store.dtype, device)}>({self.known[store.node]})"
        return f"{cpp_name(store.name)}[{self.address(store.coord)}] = {value};"

    def stored(self, stores: Sequence[Store], device: Device) -> list[str]:
        """Returns statements that compute and write one element of each result."""
        return [*self.statements([s.node for s in stores]), *(self.assign(s, device) for s in stores)]

    def needed(self, roots: Iterable[int]) -> list[int]:
        """Returns the nodes to compute for the roots, in order, without those that are known."""

        def unknown(nodes: Iterable[int]) -> list[int]:
            return [at for at in nodes if at not in self.known]

        return sorted(reached(unknown(roots), lambda at: unknown(children(self.kernel.nodes[at]))))

    def statements(self, roots: Iterable[int]) -> list[str]:
        """Returns declarations that compute the roots. Afterwards `known` has the roots' texts."""
        roots = list(roots)
        order = self.needed(roots)
        nodes = self.kernel.nodes
        uses = Counter(roots) + Counter(child for at in order for child in children(nodes[at]))
        dynamic = {n for at in order for c in nodes[at].coords for n, _ in c.dynamic}
        lines = []
        for at in order:
            text, op = self._text(at), nodes[at].op
            if self.checks and nodes[at].is_checked(nodes):
                name = f"f_outside_{op}" if op in INDEXING else "f_is_zero"
                parts = nodes[at].args if op in INDEXING else nodes[at].args[1:]
                lines.append(f"bad |= {name}({', '.join(self.known[part] for part in parts)});")
            if op == "const" or (uses[at] <= 1 and len(text) <= 56 and at not in dynamic and op != "load"):
                self.known[at] = text
            else:
                lines.append(self._declare(at, text))
        return lines

    def _declare(self, at: int, text: str) -> str:
        self.known[at] = f"v{at}"
        return f"const {C_TYPES[self.kernel.nodes[at].type]} v{at} = {_without_parentheses(text)};"

    def variables(self, roots: Iterable[int]) -> list[str]:
        """Returns `statements` that make every root a variable, so that a later loop doesn't recompute it."""
        roots = list(roots)
        lines = self.statements(roots)
        for at in roots:
            text = self.known[at]
            if not text.replace("_", "").isalnum() and self.kernel.nodes[at].op != "const":
                lines.append(self._declare(at, text))
        return lines

    def row_level(self, roots: list[int]) -> list[str]:
        """Returns statements before the loop over columns: they compute the row-level roots, and the row-level operands
        of the other roots."""
        full, nodes = self.kernel.full(), self.kernel.nodes
        wanted: set[int] = set()
        for at in self.needed(roots):
            if at in full:
                wanted.update(child for child in children(nodes[at]) if child not in full)
            elif at in roots:
                wanted.add(at)
        return self.variables(sorted(at for at in wanted if nodes[at].op != "const"))

    def _text(self, at: int) -> str:
        expr = self.kernel.nodes[at]
        if expr.op == "const":
            assert expr.value is not None
            return literal(expr.value, expr.type)
        if expr.op == "index":
            return f"static_cast<{C_TYPES[expr.type]}>({self.address(expr.coord)})"
        if expr.op == "inside":
            return f"({self.test(expr.guards)})"
        if expr.op == "load":
            return self.load(at, expr) if self.load is not None else self.read(expr)
        if expr.op in ("reduce", "scan"):
            raise AssertionError(f"{expr.op} {at} is used before its pass")
        return operation(expr, [self.known[a] for a in expr.args], [self.kernel.nodes[a].type for a in expr.args])


def _without_parentheses(text: str) -> str:
    """Returns the text without its outer parentheses, where these are a pair."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and position < len(text) - 1:
            return text
    return text[1:-1]


def decode(
    work: Kernel, axes: Sequence[int], source: str, type_: str, *, scale: int = 1, letter: str = "i"
) -> list[str]:
    """Returns statements that decode a row-major position over these axes into the indices `i<axis>`. The last axis
    counts in steps of `scale`."""
    lines, rest = [], source
    for position, axis in reversed(list(enumerate(axes))):
        step = scale if position == len(axes) - 1 else 1
        size = work.axes()[axis] // step
        value = f"{rest} % {size}" if position else rest
        lines.append(f"const {type_} {letter}{axis} = {value if step == 1 else f'({value}) * {step}'};")
        if position:
            lines.append(f"const {type_} {letter}{axis}_up = {rest} / {size};")
            rest = f"{letter}{axis}_up"
    return lines


def parameters(work: Kernel, device: Device) -> list[tuple[str, str]]:
    """Returns (type, name) of the kernel's pointers: the buffers that it reads, then those that it writes."""
    reads = [(f"const {storage_type(work.dtype(name), device)}*", cpp_name(name)) for name in work.reads]
    return reads + [(f"{storage_type(dtype, device)}*", cpp_name(name)) for name, dtype in work.writes]


#: stands between the lines of a list until their indentation is known.
_BREAK = "\0"


@cache
def environment() -> jinja2.Environment:
    """Returns the environment of templates. The skills' paths are relative to the parent of their folder."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([Path(__file__).parent, *FOLDERS]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=_joined,
    )
    made.filters["cpp_name"] = cpp_name
    made.globals |= {
        "decode": decode,
        "numel": ir.numel,
        "c_types": C_TYPES,
        "cpp_name": cpp_name,
        "contiguous": ir.contiguous,
    }
    return made


def render(template: str, values: Mapping[str, object]) -> str:
    """Returns the template's text. A list is inserted line by line, all with the indentation of its place. The lines of
    empty insertions are left out."""
    lines = environment().get_template(template).render(**values).splitlines(keepends=True)
    kept = (line for line in lines if line.strip() or line == "\n")
    return "".join(line.replace(_BREAK, "\n" + " " * (len(line) - len(line.lstrip(" ")))) for line in kept)


def _joined(value: object) -> object:
    """Joins the lines of a list that a template inserts."""
    return _BREAK.join(value) if isinstance(value, list | tuple) else value


def vector_width(work: Kernel, along: int | None = None, cap: int = 8) -> int:
    """Returns the vector width of accesses of at most 16 bytes along an axis, by default the last one. It is 1 where no
    access is contiguous."""
    if not work.axes():
        return 1
    axis = len(work.axes()) - 1 if along is None else along
    coords = [(e.coord, e.dtype) for e in work.nodes if e.op == "load"]
    coords += [(s.coord, s.dtype) for s in work.stores if s.full]
    contiguous = [(c, d) for c, d in coords if c.coef((axis, 0)) == 1]
    return common_width(contiguous, work.axes()[axis], axis, cap) if contiguous else 1


def common_width(coords: list[tuple[Coord, str]], size: int, axis: int, cap: int = 8) -> int:
    """Returns the vector width of accesses at these addresses, which are contiguous along an axis of this size."""
    width = min(cap, 16 // min(ir.ITEM_BYTES[d] for _, d in coords))
    while width > 1 and (size % width or not all(is_aligned(width, coord, axis) for coord, _ in coords)):
        width //= 2
    return width


def is_aligned(width: int, coord: Coord, axis: int) -> bool:
    """Returns whether contiguous accesses at steps of a width along the axis are aligned to that width."""
    steps = [coef for (k, _), coef in coord.terms if k != axis] + [coef for _, coef in coord.dynamic]
    return coord.const % width == 0 and not any(step % width for step in steps)


def kernel_files(device: Device, name: str, text: str, *, reduces: bool = False) -> dict[str, str]:
    """Returns a kernel's source and the scalar, vector and reduction helpers that it includes."""
    cuda = device is Device.CUDA
    suffix = "cuh" if cuda else "h"
    helpers = {f"kernels/elementwise.{suffix}": environment().get_template(f"shared/elementwise.{suffix}").render()}
    if reduces and cuda:
        helpers["kernels/reduction.cuh"] = environment().get_template("shared/reduction.cuh").render()
    if SPECIAL & set(re.findall(r"\bf_(\w+)\(", text)):
        helper = environment().get_template("shared/special.j2")
        words = {
            "cuda": cuda,
            "suffix": suffix,
            "unroll": "#pragma unroll (sizeof(T) == 4 ? 64 : 1)" if cuda else "#pragma GCC unroll 64",
        }
        inline = "__device__ __forceinline__" if cuda else "INLINE"
        helpers[f"kernels/special.{suffix}"] = helper.render(inline=inline, **words)
        text = re.sub(r'^(#include ".*"\n)', rf'\1#include "special.{suffix}"\n', text, count=1, flags=re.MULTILINE)
    return {f"kernels/{name}.{'cu' if cuda else 'cpp'}": text, **helpers}


def launcher(
    work: Kernel,
    device: Device,
    name: str,
    scratch: Iterable[tuple[str, str]] = (),
    shifts: Mapping[str, int] | None = None,
) -> tuple[str, str]:
    """Returns the declaration of the launcher's pointers and the statement that calls it. `shifts` are the bytes by
    which the pointers to some buffers are moved."""
    moved = {cpp_name(buffer): shift for buffer, shift in (shifts or {}).items() if shift}
    pointers = [*parameters(work, device), *((f"{type_}*", label) for type_, label in scratch)]
    # Pointers to 16-bit floats are passed as void*, because torch and CUDA have different types for these.
    types = {f"{const}{name}*" for const in ("const ", "") for kinds in _HALVES.values() for name in kinds.values()}
    plain = [(("const void*" if t.startswith("const") else "void*") if t in types else t, n) for t, n in pointers]
    declared = ", ".join(f"{t} {n}" for t, n in plain)

    def argument(type_: str, buffer: str) -> str:
        if buffer not in moved:
            return f"static_cast<{type_}>({buffer}.data_ptr())"
        return f"reinterpret_cast<{type_}>(static_cast<const char*>({buffer}.data_ptr()) + {moved[buffer]}LL)"

    passed = ", ".join(argument(type_, buffer) for type_, buffer in plain)
    call = f"launch_{name}({passed}, config_{name}{', stream' if device is Device.CUDA else ''})"
    return declared, f'check_values("{name}", {call});' if notes_values(work, device) else f"{call};"


def notes_values(work: Kernel, device: Device) -> bool:
    """Returns whether the launcher returns what was wrong with the operands' values. On a GPU the kernel stops with an
    assertion instead, as PyTorch's do, since to read a result would wait for it."""
    return device is Device.CPU and any(expr.is_checked(work.nodes) for expr in work.nodes)
