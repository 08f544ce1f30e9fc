"""Partial states of reductions as C++ text: fields, how two states merge, how a vector of values joins one."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent.playbook.codegen import C_TYPES, literal
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.passes import companion

_IDENTITY = {"sum": "0", "prod": "1", "any": "false", "all": "true"}
COMBINE = {"sum": "f_plus", "prod": "f_times", "max": "f_maximum", "min": "f_minimum", "any": "f_or", "all": "f_and"}
FUNCTORS = {"sum": "Plus", "prod": "Times", "max": "Maximum", "min": "Minimum", "any": "Or", "all": "And"}
OPS = {"sum": "{a} + {b}", "prod": "{a} * {b}", "max": "f_maximum({a}, {b})", "min": "f_minimum({a}, {b})",
        "any": "{a} | {b}", "all": "{a} & {b}"}  # fmt: skip


def identity(kind: str, type_: str) -> str:
    """What a reduction begins with, as text."""
    if kind in _IDENTITY:
        return _IDENTITY[kind]
    if type_ in ("f32", "f64"):
        return literal(float("-inf" if kind == "max" else "inf"), type_)
    if type_ == "b":
        return "false" if kind == "max" else "true"
    lowest = {"i32": "INT32_MIN", "i64": "INT64_MIN"}[type_]
    return lowest if kind == "max" else lowest.replace("MIN", "MAX")


@dataclass(frozen=True)
class StateText:
    """Texts for the reductions of one sweep. `accumulate(values)` statements read `b<body>[j]`, j < WIDTH; `results`
    gives each reduction's value as an expression over the state."""

    fields: tuple[str, ...]
    merge: tuple[str, ...]
    accumulate: tuple[str, ...]
    results: dict[int, str]
    bodies: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class _Part:
    """The text of one reduction; `size` is the bytes of its fields."""

    fields: list[str]
    merge: list[str]
    add: list[str]
    results: dict[int, str]
    size: int


def state_text(work: Kernel, reduces: tuple[int, ...], state: str, lanes: str = "WIDTH") -> StateText:
    """Returns the text of a state. `state` is the variable's text; `lanes` is how many values `b<body>` holds."""
    parts = []
    for at in reduces:
        name, other = work.nodes[at].name, companion(work, at)
        if other is None:
            parts.append(_plain(work, at, state, lanes))
        elif name == "expsum":
            parts.append(_exponentials(work, at, other, state, lanes))
        elif name == "m2":
            parts.append(_variance(work, at, other, state, lanes))
        elif name.endswith("place"):
            parts.append(_place(work, at, other, state, lanes))
        elif name not in ("max", "sum", "min"):
            parts.append(_plain(work, at, state, lanes))
    bodies = tuple(dict.fromkeys(body for at in reduces for body in work.nodes[at].args))
    return StateText(
        fields=tuple(line for part in parts for line in part.fields),
        merge=tuple(line for part in parts for line in part.merge),
        accumulate=tuple(line for part in parts for line in part.add),
        results={at: text for part in parts for at, text in part.results.items()},
        bodies=bodies,
        bytes=-(-sum(part.size for part in parts) // 8) * 8,
    )


def _loop(lanes: str) -> str:
    return f"for (int j = 0; j < {lanes}; ++j)"


def _exponentials(work: Kernel, at: int, other: int, state: str, lanes: str) -> _Part:
    """Returns the maximum and the sum of exponentials beside it, which a larger maximum rescales."""
    expr = work.nodes[at]
    body, type_ = expr.args[0], C_TYPES[expr.type]
    merge = [
        f"const {type_} m{at} = f_maximum(a.m{at}, b.m{at});",
        f"a.e{at} = a.e{at} * (a.m{at} == m{at} ? {type_}(1) : f_exp(a.m{at} - m{at})) + "
        f"b.e{at} * (b.m{at} == m{at} ? {type_}(1) : f_exp(b.m{at} - m{at}));",
        f"a.m{at} = m{at};",
    ]
    add = [
        f"{type_} top{at} = {state}.m{at};",
        "#pragma unroll",
        f"{_loop(lanes)} top{at} = f_maximum(top{at}, b{body}[j]);",
        f"if (top{at} != {state}.m{at}) {{",
        f"  {state}.e{at} *= f_exp({state}.m{at} - top{at});",
        f"  {state}.m{at} = top{at};",
        "}",
        f"const {type_} base{at} = top{at} == -static_cast<{type_}>(INFINITY) ? {type_}(0) : top{at};",
        "#pragma unroll",
        f"{_loop(lanes)} {state}.e{at} += f_exp(b{body}[j] - base{at});",
    ]
    fields = [f"{type_} m{at} = -static_cast<{type_}>(INFINITY);", f"{type_} e{at} = 0;"]
    return _Part(fields, merge, add, {at: f"{state}.e{at}", other: f"{state}.m{at}"}, 2 * _bytes(expr.type))


def _variance(work: Kernel, at: int, other: int, state: str, lanes: str) -> _Part:
    """Returns count, mean and sum of squared differences, joined by Chan's formula."""
    expr = work.nodes[at]
    body, type_ = expr.args[0], C_TYPES[expr.type]
    add = [
        f"{type_} mean{at} = 0, q{at} = 0;",
        "#pragma unroll",
        f"{_loop(lanes)} mean{at} += b{body}[j];",
        f"mean{at} *= {type_}(1) / {lanes};",
        "#pragma unroll",
        f"{_loop(lanes)} q{at} += (b{body}[j] - mean{at}) * (b{body}[j] - mean{at});",
        *_chan(state, "", at, type_, f"{type_}({lanes})", f"mean{at}", f"q{at}"),
    ]
    fields = [f"{type_} n{at} = 0;", f"{type_} mean{at} = 0;", f"{type_} q{at} = 0;"]
    merge = _chan("a", "b", at, type_, f"b.n{at}", f"b.mean{at}", f"b.q{at}")
    results = {at: f"{state}.q{at}", other: f"({state}.mean{at} * {state}.n{at})"}
    return _Part(fields, list(merge), add, results, 3 * _bytes(expr.type))


def _place(work: Kernel, at: int, other: int, state: str, lanes: str) -> _Part:
    """Returns a maximum or minimum with its place."""
    expr = work.nodes[at]
    body, place = expr.args[:2]
    value_type, kind = work.nodes[body].type, expr.name.removesuffix("place")
    fields = [
        f"{C_TYPES[value_type]} m{at} = {identity(kind, value_type)};",
        f"{C_TYPES[expr.type]} p{at} = {identity('min', expr.type)};",
    ]
    merge = [f"take_{kind}(a.m{at}, a.p{at}, b.m{at}, b.p{at});"]
    loop = _loop(lanes)
    add = ["#pragma unroll", f"{loop} take_{kind}({state}.m{at}, {state}.p{at}, b{body}[j], b{place}[j]);"]
    # Each field is at a multiple of the larger one's size.
    size = 2 * max(_bytes(value_type), _bytes(expr.type))
    return _Part(fields, merge, add, {at: f"{state}.p{at}", other: f"{state}.m{at}"}, size)


def _plain(work: Kernel, at: int, state: str, lanes: str) -> _Part:
    """Returns a reduction by one operator."""
    expr = work.nodes[at]
    kind = "int" if expr.type == "b" else C_TYPES[expr.type]
    start = {"any": "0", "all": "1"}.get(expr.name, identity(expr.name, expr.type))
    joined = OPS[expr.name].format
    add = [
        "#pragma unroll",
        f"{_loop(lanes)} {state}.r{at} = {joined(a=f'{state}.r{at}', b=f'b{expr.args[0]}[j]')};",
    ]
    result = f"{state}.r{at}" if expr.type != "b" else f"({state}.r{at} != 0)"
    merge = [f"a.r{at} = {joined(a=f'a.r{at}', b=f'b.r{at}')};"]
    return _Part([f"{kind} r{at} = {start};"], merge, add, {at: result}, max(4, _bytes(expr.type)))


def _bytes(type_: str) -> int:
    return 8 if type_ in ("f64", "i64") else 4


def _chan(a: str, b: str, at: int, type_: str, count: str, mean: str, deviations: str) -> list[str]:
    """Chan et al., "Updating formulae and a pairwise algorithm for computing sample variances" (1979)."""
    return [
        "{",
        f"  const {type_} total = {a}.n{at} + {count}, gap = {mean} - {a}.mean{at};",
        f"  const {type_} share = total > 0 ? {count} / total : {type_}(0);",
        f"  {a}.q{at} += {deviations} + gap * gap * {a}.n{at} * share;",
        f"  {a}.mean{at} += gap * share;",
        f"  {a}.n{at} = total;",
        "}",
    ]
