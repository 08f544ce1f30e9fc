"""Writes the docstring of a composed module, and formats values and calls."""

import ast
import re
from collections.abc import Sequence

from cuda_agent.core.assets import tables
from cuda_agent.tasks.compose.affinity import role
from cuda_agent.tasks.compose.naming import NamedStep, Names, literal
from cuda_agent.tasks.compose.plain import without_defaults
from cuda_agent.tasks.compose.sizing import Sized
from cuda_agent.tasks.expressions import fill
from cuda_agent.tasks.records import Seed

#: The line width of a composed module.
WIDTH = 110
_TABLES = tables(__file__)
_TOLD = frozenset(_TABLES["told"].split())
_INFIX: dict[str, str] = _TABLES["infix"]


def docstring(sized: Sized, names: Names) -> str:
    """Returns the computation of the module: a phrase of its operators, and a formula."""
    phrases = [_phrase(named) for named in names.steps]
    title = _joined(phrases)
    title = title if title.startswith("x ") else f"{title[0].upper()}{title[1:]}"
    formula = names.first
    for named in names.steps:
        formula = _formula(formula, named)
    result = "loss" if role(names.steps[-1].step.seed) == "loss" else "out" if re.search(r"\by\b", formula) else "y"
    line = f"{title}: {result} = {formula}."
    return line if len(line) <= WIDTH else f"{title}.\n\n{result} = {formula}\n"


def _formula(before: str, named: NamedStep) -> str:
    """Returns the formula of one more operator."""
    seed, others = named.step.seed, list(named.ports.values())
    port = seed.ports[0].name
    outer = before if isinstance(ast.parse(before, mode="eval").body, ast.Call | ast.Name) else f"({before})"
    if seed.operator in _INFIX and len(others) == 1:
        return f"{outer} {_INFIX[seed.operator]} {others[0]}"
    if seed.constructor is None and re.search(r"^\{\w+\} [-+*/@] ", seed.call):
        return quoted(fill(seed.call, texts_of(named) | named.ports | {port: outer}))
    repeated = seed.call.count(f"{{{port}}}") > 1 and ".device" not in seed.call
    changed = re.search(r"\d [-+*/] \{|\} [<>] ", seed.call) is not None or _function(seed) not in seed.call
    if seed.constructor is None and (repeated or changed or seed.operator == "einsum"):
        inside = before if stands_alone(seed, port) and f"{{{port}}}." not in seed.call else outer
        written = quoted(fill(seed.call, texts_of(named) | named.ports | {port: inside}))
        return re.sub(r"\b(torch|F)\.((special|linalg)\.)?", "", written)
    return f"{_function(seed)}({', '.join(_ordered(named, before))})"


def _ordered(named: NamedStep, before: str) -> list[str]:
    """Returns the arguments of an operator in the order of its function: `where(mask, x, other)`, `elu(x,
    alpha=0.5)`."""
    seed, first = named.step.seed, named.step.seed.ports[0].name
    texts = {first: before, **named.ports}
    if seed.operator == "where":
        return [texts["mask"], *(text for name, text in texts.items() if name != "mask")]
    called = seed.call if seed.constructor is None else ""
    settings = _settings(named)
    texts |= {} if seed.constructor is not None else settings
    places = {name: called.find(f"{{{name}}}") for name in texts}
    ordered = [
        texts[name] for name in sorted(texts, key=lambda name: places[name] if places[name] >= 0 else len(called))
    ]
    return [*ordered, *(settings.values() if seed.constructor is not None else ())]


def _settings(named: NamedStep) -> dict[str, str]:
    """Returns the arguments that affect the computation: `0.5`, `alpha=0.5`, `is_causal=True`."""
    seed = named.step.seed
    template = seed.constructor or seed.call
    ports = {port.name: port.name for port in seed.ports}
    written = ast.parse(without_defaults(quoted(fill(template, {"layer": "layer"} | ports | texts_of(named)))))
    call = next((node for node in ast.walk(written) if isinstance(node, ast.Call)), None)
    found = {}
    for parameter in seed.parameters:
        name = parameter.name
        by_place = f"{{{name}}}" in template and f"={{{name}}}" not in template
        if by_place and name not in named.sizes and name != "num_heads":
            found[name] = quoted(texts_of(named)[name])
    for item in call.keywords if call is not None else ():
        number = isinstance(item.value, ast.Constant | ast.UnaryOp) or item.arg == "groups"
        if item.arg is not None and item.arg not in _TOLD and number:
            found[item.arg] = f"{item.arg}={quoted(ast.unparse(item.value))}"
    return found


def _function(seed: Seed) -> str:
    called = re.findall(r"[.\w]*?(\w+)\(", seed.call)
    if seed.constructor is None and len(called) == 1:
        return str(called[0])
    return re.sub(r"_?[123]d$", "", seed.operator)


def _phrase(named: NamedStep) -> str:
    """Returns the seed's phrase, with the dimension's name in place of `a dimension`."""
    says, dim = named.step.seed.says, named.step.names.get("dim")
    if "(2, 3)" in named.step.seed.call:
        return says.replace("a dimension", "height and width")
    if "a dimension" in says and isinstance(dim, int):
        rank = len(named.step.shapes[0])
        if rank > 2 and dim == 1 and named.dims[1] != "heads" and (rank > 3 or str(named.dims[1]).endswith("channels")):
            return says.replace("a dimension", "channels")
        place = "the last dimension" if dim in (-1, rank - 1) else f"dimension {dim}"
        says = says.replace("a dimension", place)
    return says


def _joined(phrases: Sequence[str]) -> str:
    if len(phrases) == 1:
        return phrases[0]
    if len(phrases) == 2:
        return f"{phrases[0]} followed by {phrases[1]}"
    return f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def quoted(text: str) -> str:
    """Returns the text with double quotes, and `x - 1.0` for `x + -1.0`."""
    return re.sub(r"'([^'\"]*)'", r'"\1"', text).replace(" + -", " - ")


def texts_of(named: NamedStep) -> dict[str, str]:
    """Returns the texts of all dimensions and parameters: those without a name are literals."""
    return {item: literal(value) for item, value in named.step.names.items()} | named.texts


def stands_alone(seed: Seed, port: str) -> bool:
    """Returns whether the port is between brackets or commas where the call first names it."""
    return re.fullmatch(r".*?[(,]\s*\{" + port + r"\}\s*[,)].*", seed.call) is not None
