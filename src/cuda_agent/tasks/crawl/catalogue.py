"""The catalogue has one YAML file for each family of operators, with the usual call of each operator.

An operator may have a module, a functional and a method spelling. Each is its own seed if the installed library has it.
The settings at the top of a file are the defaults of its operators.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from cuda_agent.core.errors import UsageError
from cuda_agent.tasks.records import Parameter, Port, Seed

FOLDER = Path(__file__).parent / "operators"
Spelling = Literal["module", "functional", "method"]
_SPELLINGS: tuple[Spelling, ...] = ("module", "functional", "method")
_IMPORTS = (
    ("nn.", "from torch import nn"),
    ("F.", "import torch.nn.functional as F"),
    ("torch.", "import torch"),
)
_SHARED = ("ports", "parameters", "where", "flops", "moved")
#: The small sizes at which a seed is tried on the CPU.
SMALL = {"N": 2, "B": 2, "C": 8, "D": 16, "E": 16, "L": 16, "H": 16, "W": 16, "T": 8, "M": 8, "K": 16, "P": 12, "V": 32}
SMALL_LEADING = (2, 6)


@dataclass(frozen=True)
class Entry:
    """A seed of the catalogue and the small sizes at which it is tried."""

    seed: Seed
    small: dict[str, int]


def _port(name: str, told: Any) -> Port:
    return Port(name=name, layout=told) if isinstance(told, str) else Port(name=name, **told)


def _imports(*texts: str | None) -> tuple[str, ...]:
    joined = " ".join(text for text in texts if text)
    return tuple(line for prefix, line in _IMPORTS if re.search(rf"(?<![\w.]){re.escape(prefix)}", joined))


def _callee(text: str) -> str:
    """Returns the called name: `nn.Conv2d` for `nn.Conv2d({C}, 3)`, `Tensor.cumsum` for `{x}.cumsum(-1)`."""
    match = re.search(r"^\{x\}\.(\w+)", text)
    if match:
        return f"Tensor.{match[1]}"
    match = re.search(r"(?<![\w.])((?:nn|F|torch)\.[\w.]*\w)", text)
    return match[1] if match else text


def _needed(parameters: dict[str, Any], texts: tuple[str, ...]) -> tuple[Parameter, ...]:
    """Returns the parameters that a spelling uses, and those that their choices use."""
    kept: list[Parameter] = []
    wanted = " ".join(texts)
    for name, told in reversed(parameters.items()):
        if re.search(rf"\b{name}\b", wanted):
            choices = told if isinstance(told, list) else [told]
            kept.append(Parameter(name=name, choices=tuple(map(str, choices))))
            wanted += " " + " ".join(kept[-1].choices)
    return tuple(reversed(kept))


def callees(seed: Seed) -> tuple[str, ...]:
    """Returns all names that a seed's code calls, as `nn.Conv2d`, `F.pad`, `torch.linalg.cross`, `Tensor.cumsum`."""
    text = f"{seed.constructor or ''} {seed.call}"
    methods = re.findall(r"[})]\.(\w+)\(", text)
    return (*re.findall(r"(?<![\w.])((?:nn|F|torch)\.[\w.]*\w)\(", text), *(f"Tensor.{name}" for name in methods))


def _seed(operator: str, spelling: Spelling, told: Any, about: dict[str, Any], page: dict[str, Any]) -> Seed:
    own: dict[str, Any] = {"call": told} if isinstance(told, str) else dict(told)
    found: dict[str, Any] = {name: own.get(name, about.get(name, page.get(name))) for name in (*_SHARED, "says")}
    ports = tuple(_port(name, item) for name, item in found["ports"].items())
    constructor, call = None, own["call"]
    if spelling == "module":
        constructor, call = call, own.get("forward", "{layer}(" + ", ".join(f"{{{port.name}}}" for port in ports) + ")")
    templates = (constructor or "", call, *(port.layout for port in ports), *(port.high or "" for port in ports))
    named = {port.name for port in ports}
    told_parameters = {name: item for name, item in (found["parameters"] or {}).items() if name not in named}
    parameters = _needed(told_parameters, templates)
    used = " ".join((*templates, *(choice for parameter in parameters for choice in parameter.choices)))
    sizes = page.get("sizes", {}) | about.get("sizes", {}) | own.get("sizes", {})
    names = set(re.findall(r"\w+", used))
    return Seed(
        name=own.get("name", _callee(constructor or call)),
        library="torch",
        operator=operator,
        family=about.get("family", page["family"]),
        spelling=spelling,
        ports=ports,
        parameters=parameters,
        imports=_imports(constructor, call),
        constructor=constructor,
        call=call,
        where=tuple(found["where"] or ()),
        **{name: str(found[name]) for name in ("flops", "moved") if found[name]},
        sizes={name: tuple(choices) for name, choices in sizes.items() if name in names},
        says=found["says"],
    )


def _told(spelling: Spelling, operator: str, about: dict[str, Any], page: dict[str, Any]) -> list[Any]:
    """Returns the variants of a spelling. A page may have one spelling for all of its operators, with `@` for the
    name."""
    told = about[spelling] if spelling in about else page.get(spelling)
    variants = told if isinstance(told, list) else [] if told is None else [told]
    return [item.replace("@", operator) if isinstance(item, str) else item for item in variants]


def _entries(page: dict[str, Any]) -> Iterator[Entry]:
    for operator, told in page["operators"].items():
        about: dict[str, Any] = {"says": told} if isinstance(told, str) else told
        small = SMALL | page.get("small", {}) | about.get("small", {})
        for spelling in _SPELLINGS:
            for variant in _told(spelling, operator, about, page):
                yield Entry(_seed(operator, spelling, variant, about, page), small)


@cache
def read() -> tuple[Entry, ...]:
    """Returns all entries, in order of their files' names. Raises UsageError when a file is malformed."""
    entries: list[Entry] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        try:
            page = yaml.safe_load(path.read_text())
            entries += _entries(page)
        except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{path.name} isn't a page of the catalogue: {error}") from None
    return tuple(entries)
