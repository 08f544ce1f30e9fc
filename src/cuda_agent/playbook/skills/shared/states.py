"""Partial states of reductions as C++ text: fields, how two states merge, how a vector of values joins one."""

from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent.core.assets import tables
from cuda_agent.playbook.codegen import C_TYPES, literal, render
from cuda_agent.playbook.kernel import Kernel
from cuda_agent.playbook.passes import companion

_TABLES = tables(__file__)
COMBINE: dict[str, str] = _TABLES["combine"]
OPS: dict[str, str] = _TABLES["operators"]


def identity(kind: str, type_: str) -> str:
    """Returns the C++ text of a reduction's initial value."""
    if kind in _TABLES["identity"]:
        return str(_TABLES["identity"][kind])
    if type_ in ("f32", "f64"):
        return literal(float("-inf" if kind in ("max", "logsum") else "inf"), type_)
    if type_ == "b":
        return "false" if kind == "max" else "true"
    lowest = {"i32": "INT32_MIN", "i64": "INT64_MIN"}[type_]
    return lowest if kind == "max" else lowest.replace("MIN", "MAX")


def reduction(work: Kernel, at: int, known: Mapping[int, str]) -> dict[str, object]:
    """Returns what templates say about a plain reduction or a scan. `known` are the texts of computed nodes."""
    expr = work.nodes[at]
    words = {
        "combine": COMBINE[expr.name],
        "op": _TABLES["functors"][expr.name],
        "identity": identity(expr.name, expr.type),
    }
    about = {"id": at, "kind": expr.name, "type": C_TYPES[expr.type], "floats": expr.type in ("f32", "f64")}
    return {**words, **about, "value": known.get(expr.args[0])}


@dataclass(frozen=True)
class StateText:
    """Texts for the reductions of one sweep. `accumulate` statements read `b<body>[j]`, j < WIDTH; `results` gives each
    reduction's value as an expression over the state; `bytes` is at least the size of the state."""

    fields: list[str]
    merge: list[str]
    accumulate: list[str]
    results: dict[int, str]
    bodies: tuple[int, ...]
    bytes: int


def state_text(work: Kernel, reduces: tuple[int, ...], state: str, lanes: str = "WIDTH") -> StateText:
    """Returns the text of a state. `state` is the variable's text; `lanes` is how many values `b<body>` holds."""
    parts: dict[str, list[str]] = {"fields": [], "merge": [], "accumulate": []}
    results: dict[int, str] = {}
    fields, size = _TABLES["fields"], 0
    for at in reduces:
        expr, other = work.nodes[at], companion(work, at)
        if other is not None and expr.name not in fields:
            continue  # its companion's state holds it
        words = _words(work, at) | {"at": at, "state": state, "lanes": lanes}
        for part, lines in parts.items():
            lines += render("shared/states.j2", {**words, "part": part}).splitlines()
        own, beside, count = fields.get(expr.name, ("{0}.r{1}" if expr.type != "b" else "({0}.r{1} != 0)", "", 1))
        results[at] = own.format(state, at)
        if other is not None:
            results[other] = beside.format(state, at)
        # Each field is at a multiple of the largest one's size.
        size += count * max(8 if work.nodes[one].type in ("f64", "i64") else 4 for one in (at, expr.args[0]))
    bodies = tuple(dict.fromkeys(body for at in reduces for body in work.nodes[at].args))
    return StateText(**parts, results=results, bodies=bodies, bytes=-(-size // 8) * 8)


def _words(work: Kernel, at: int) -> dict[str, object]:
    """Returns what the template says about a reduction."""
    expr, value_type = work.nodes[at], work.nodes[work.nodes[at].args[0]].type
    words: dict[str, object] = {"kind": expr.name, "type": C_TYPES[expr.type], "body": expr.args[0]}
    if expr.name in OPS:
        return words | {"start": identity(expr.name, expr.type), "joined": OPS[expr.name]}
    if expr.name.endswith("place"):
        extreme = identity(expr.name.removesuffix("place"), value_type)
        words |= {"value_type": C_TYPES[value_type], "extreme": extreme, "place": expr.args[1]}
        words["last_place"] = identity("min", expr.type)
    return words
