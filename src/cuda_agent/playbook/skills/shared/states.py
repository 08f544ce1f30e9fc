"""Partial states of reductions as C++ text: fields, how two states merge, how a vector of values joins one."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent.playbook.codegen import C_TYPES, literal
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.passes import companion

_IDENTITY = {"sum": "0", "prod": "1", "any": "false", "all": "true"}
COMBINE = {"sum": "f_plus", "prod": "f_times", "max": "f_maximum", "min": "f_minimum", "any": "f_or", "all": "f_and"}
FUNCTORS = {"sum": "Plus", "prod": "Times", "max": "Maximum", "min": "Minimum", "any": "Or", "all": "And"}
_OPS = {"sum": "{a} + {b}", "prod": "{a} * {b}", "max": "f_maximum({a}, {b})", "min": "f_minimum({a}, {b})",
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


def state_text(work: Kernel, reduces: tuple[int, ...], state: str, lanes: str = "WIDTH") -> StateText:
    """`state` is the variable's text; `lanes` is how many values `b<body>` holds."""
    fields: list[str] = []
    merge: list[str] = []
    add: list[str] = []
    results: dict[int, str] = {}
    size = 0
    for at in reduces:
        expr = work.nodes[at]
        body, type_ = expr.args[0], C_TYPES[expr.type]
        other = companion(work, at)
        if other is not None and expr.name in ("max", "sum", "min"):
            continue
        loop = f"for (int j = 0; j < {lanes}; ++j)"
        if expr.name == "expsum":
            assert other is not None
            fields += [f"{type_} m{at} = -static_cast<{type_}>(INFINITY);", f"{type_} e{at} = 0;"]
            merge += [
                f"const {type_} m{at} = f_maximum(a.m{at}, b.m{at});",
                f"a.e{at} = a.e{at} * (a.m{at} == m{at} ? {type_}(1) : f_exp(a.m{at} - m{at})) + "
                f"b.e{at} * (b.m{at} == m{at} ? {type_}(1) : f_exp(b.m{at} - m{at}));",
                f"a.m{at} = m{at};",
            ]
            add += [
                f"{type_} top{at} = {state}.m{at};",
                "#pragma unroll",
                f"{loop} top{at} = f_maximum(top{at}, b{body}[j]);",
                f"if (top{at} != {state}.m{at}) {{",
                f"  {state}.e{at} *= f_exp({state}.m{at} - top{at});",
                f"  {state}.m{at} = top{at};",
                "}",
                f"const {type_} base{at} = top{at} == -static_cast<{type_}>(INFINITY) ? {type_}(0) : top{at};",
                "#pragma unroll",
                f"{loop} {state}.e{at} += f_exp(b{body}[j] - base{at});",
            ]
            results[at], results[other] = f"{state}.e{at}", f"{state}.m{at}"
            size += 2 * _bytes(expr.type)
        elif expr.name == "m2":
            assert other is not None
            fields += [f"{type_} n{at} = 0;", f"{type_} mean{at} = 0;", f"{type_} q{at} = 0;"]
            merge += _chan("a", "b", at, type_, f"b.n{at}", f"b.mean{at}", f"b.q{at}")
            add += [
                f"{type_} mean{at} = 0, q{at} = 0;",
                "#pragma unroll",
                f"{loop} mean{at} += b{body}[j];",
                f"mean{at} *= {type_}(1) / {lanes};",
                "#pragma unroll",
                f"{loop} q{at} += (b{body}[j] - mean{at}) * (b{body}[j] - mean{at});",
                *_chan(state, "", at, type_, f"{type_}({lanes})", f"mean{at}", f"q{at}"),
            ]
            results[at], results[other] = f"{state}.q{at}", f"({state}.mean{at} * {state}.n{at})"
            size += 3 * _bytes(expr.type)
        elif expr.name.endswith("place"):
            assert other is not None
            value_type, place = work.nodes[body].type, expr.args[1]
            kind = expr.name.removesuffix("place")
            fields += [
                f"{C_TYPES[value_type]} m{at} = {identity(kind, value_type)};",
                f"{type_} p{at} = {identity('min', expr.type)};",
            ]
            merge.append(f"take_{kind}(a.m{at}, a.p{at}, b.m{at}, b.p{at});")
            add += ["#pragma unroll", f"{loop} take_{kind}({state}.m{at}, {state}.p{at}, b{body}[j], b{place}[j]);"]
            results[at], results[other] = f"{state}.p{at}", f"{state}.m{at}"
            # Each at a multiple of the larger one's size.
            size += 2 * max(_bytes(value_type), _bytes(expr.type))
        else:
            kind = "int" if expr.type == "b" else type_
            start = {"any": "0", "all": "1"}.get(expr.name, identity(expr.name, expr.type))
            fields.append(f"{kind} r{at} = {start};")
            merge.append(f"a.r{at} = {_OPS[expr.name].format(a=f'a.r{at}', b=f'b.r{at}')};")
            add += [
                "#pragma unroll",
                f"{loop} {state}.r{at} = {_OPS[expr.name].format(a=f'{state}.r{at}', b=f'b{body}[j]')};",
            ]
            results[at] = f"{state}.r{at}" if expr.type != "b" else f"({state}.r{at} != 0)"
            size += max(4, _bytes(expr.type))
    bodies = tuple(dict.fromkeys(body for at in reduces for body in work.nodes[at].args))
    return StateText(tuple(fields), tuple(merge), tuple(add), results, bodies, -(-size // 8) * 8)


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
