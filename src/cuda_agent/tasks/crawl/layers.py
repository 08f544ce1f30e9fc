"""Tries layers of transformers inside a sandbox.

A class becomes a seed when it runs with some configuration and inputs. The sizes come from the settings that its
constructor reads, and the inputs from the arguments of its `forward`. Candidates are tried on meta tensors.
"""

import contextlib
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers import PreTrainedConfig

from cuda_agent.core.assets import inverted, tables
from cuda_agent.tasks.crawl.arguments import Argument, arguments_of, constructor_values
from cuda_agent.tasks.crawl.binding import bindings
from cuda_agent.tasks.crawl.costs import measure, measured
from cuda_agent.tasks.crawl.trial import Unfit, attempt, scope_of, serving
from cuda_agent.tasks.expressions import names_in, placeholders
from cuda_agent.tasks.records import Parameter, Port, Seed

_IMPLEMENTATIONS = {"attn_implementation": "'eager'", "experts_implementation": "'batched_mm'"}
#: Some experts copy their weights for every token, so they are tried at small sizes.
_SMALL_EXPERTS = {"T": 4, "N": 8, "D": 128}
SMALL = {"B": 2, "T": 16, "S": 12, "D": 256, "N": 32, "H": 8, "W": 8, "G": 4}
_TRIES = 160
_MOST_WEIGHTS = 80_000_000
_TABLES = tables(__file__)
_SIZES: dict[str, list[int]] = _TABLES["sizes"]
_SIZE_OF = inverted(_TABLES["fields"])
_CHOICES: dict[str, list[str]] = _TABLES["choices"]


@dataclass(frozen=True)
class Maker:
    """A way to construct a class: `template` with sizes in braces."""

    template: str
    imports: tuple[str, ...]
    config: Any = None


def _config_classes(module: Any, annotated: Any) -> list[Any]:
    found = [item for item in vars(module).values() if inspect.isclass(item) and issubclass(item, PreTrainedConfig)]
    mine = [item for item in found if item is not PreTrainedConfig]
    named = annotated.__name__ if inspect.isclass(annotated) else str(annotated)
    return sorted(dict.fromkeys(mine), key=lambda item: (item.__name__ not in named.split("|"), item.__name__))[:4]


@contextlib.contextmanager
def _recorded(kind: Any) -> Iterator[dict[str, None]]:
    """Records the names that are read from configurations of a class in this block, in order."""
    reads = dict[str, None]()
    original = kind.__getattribute__

    def recording(own: Any, name: str) -> Any:
        reads[name] = None
        return original(own, name)

    with mock.patch.object(kind, "__getattribute__", recording):
        yield reads


def _settings(config: Any, reads: dict[str, None]) -> dict[str, str]:
    """Returns keyword arguments for the configuration: the sizes that are read, under the names that it declares."""
    aliases = getattr(config, "attribute_map", {})
    found: dict[str, str] = {}
    for name in reads:
        real, size = aliases.get(name, name), _SIZE_OF.get(name)
        declared = real in inspect.signature(type(config).__init__).parameters or real in vars(config)
        if size is None or not declared or not isinstance(getattr(config, real, None) or 1, int):
            continue
        found.setdefault(real, size if size == "64" else f"{{{size}}}")
    return found


def _config_makers(cls: Any, module: Any, config_class: Any, slot: str, others: dict[str, str]) -> Iterator[Maker]:
    """Yields makers with the sizes that the class reads as variables, then with the default configuration. `slot` is
    the name of the configuration's argument, or empty where it is the first one."""
    imports = (
        f"from {config_class.__module__} import {config_class.__name__}",
        f"from {module.__name__} import {cls.__name__}",
    )
    rest = "".join(f", {name}={value}" for name, value in others.items())
    values = {name: eval(re.sub(r"\{\w+\}", "256", value)) for name, value in others.items()}
    config = config_class(attn_implementation="eager", experts_implementation="batched_mm")
    try:
        with _recorded(config_class) as reads, torch.device("meta"):
            cls(**{slot or "config": config, **values})
    except Exception as error:  # noqa: BLE001 - this configuration isn't for this class
        raise Unfit(f"can't be made from {config_class.__name__}: {_line(error)}") from None
    source = inspect.getsource(cls)
    fixed = {}
    if re.search(r"[Aa]ttention|[Aa]ttn", source) and "_attn_implementation" in inspect.getsource(module):
        fixed["attn_implementation"] = _IMPLEMENTATIONS["attn_implementation"]
    if re.search(r"[Ee]xperts|MoE|Moe", source):
        fixed["experts_implementation"] = _IMPLEMENTATIONS["experts_implementation"]
    ours = _settings(config, reads)
    ungrouped = {name: value.replace("kv_heads", "heads") for name, value in ours.items()}
    free = {name: value for name, value in ours.items() if value != "64"}
    tried: list[dict[str, str]] = []
    for settings in (ours, ungrouped, free, {}):
        if settings in tried:
            continue
        tried.append(settings)
        written = ", ".join(f"{name}={value}" for name, value in (settings | fixed).items())
        made = f"{config_class.__name__}({written})"
        template = f"{cls.__name__}({f'{slot}={made}' if slot else made}{rest})"
        yield Maker(template, imports, config)


def _makers(cls: Any, module: Any) -> Iterator[Maker]:
    """Yields ways to construct the class. Raises Unfit when its constructor needs an unknown argument."""
    parameters = [item for name, item in inspect.signature(cls.__init__).parameters.items() if name != "self"]
    wanted = [item for item in parameters if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)]
    config = next((item for item in wanted if item.name.endswith("config") or "Config" in str(item.annotation)), None)
    required = [item.name for item in wanted if item.default is item.empty and item is not config]
    others = constructor_values(required)
    if config is None:
        template = f"{cls.__name__}({', '.join(others.values())})"
        imports = (f"from {module.__name__} import {cls.__name__}",)
        yield Maker(template, imports)
        return
    failures = []
    for config_class in _config_classes(module, config.annotation):
        try:
            slot = "" if config is wanted[0] and config.name == "config" else config.name
            yield from _config_makers(cls, module, config_class, slot, others)
        except Unfit as unfit:
            failures.append(str(unfit))
        except Exception as error:  # noqa: BLE001 - the library's own configuration fails
            failures.append(f"{config_class.__name__} can't be made: {_line(error)}")
    if failures:
        raise Unfit(failures[0])


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:140] if text else ''}"


def _hidden(item: Any, maker: Maker) -> str:
    """Returns the width in layouts: D where it is variable, else the configuration's. A rotary embedding reads only the
    dtype of its tensor."""
    if "D" in placeholders(maker.template) or maker.config is None:
        return "D"
    if re.search(r"Rotary|Rope|RoPE", item.__name__):
        return "64"
    names = [name for name in _TABLES["fields"]["D"].split() if isinstance(getattr(maker.config, name, None), int)]
    return str(getattr(maker.config, names[0])) if names else "D"


def _candidate(item: Any, module: Any, maker: Maker | None, chosen: tuple[Argument, ...], call: str) -> Seed:
    ports = tuple(Port(**port) for argument in chosen for port in argument.ports)
    used = set(placeholders(maker.template) if maker else ())
    used.update(name for port in ports for name in names_in(f"{port.layout} {port.high or ''}"))
    parameters = tuple(Parameter(name=name, choices=choices) for name, choices in _CHOICES.items() if name in used)
    text = " ".join([*used, *(choice for parameter in parameters for choice in parameter.choices)])
    natural = _SIZES | (_TABLES["sizes_of_experts"] if maker and "batched_mm" in maker.template else {})
    natural = natural | (_TABLES["sizes_of_images"] if "H" in ports[0].layout.split() else {})
    sizes = {name: choices for name, choices in natural.items() if re.search(rf"\b{name}\b", text)}
    family, phrase = _kind(item, module)
    own = f"from {module.__name__} import {item.__name__}"
    return Seed(
        name=f"{module.__name__.split('.')[2]}.{item.__name__}",
        library="transformers",
        operator=item.__name__,
        family=family,
        spelling="module" if maker else "functional",
        ports=ports,
        parameters=parameters,
        imports=maker.imports if maker else (own,),
        constructor=maker.template if maker else None,
        call=call,
        where=("D % 128 == 0",) if {"heads", "kv_heads"} & used else (),
        sizes=sizes,
        says=f"{phrase} of {_family(module)}",
    )


def _family(module: Any) -> str:
    """Returns the family's name in its own spelling: the name before `Config`."""
    written = str(module.__name__).split(".")[2]
    names = [item.__name__.removesuffix("Config") for item in _config_classes(module, "")]
    same = [name for name in names if name.lower() == written.replace("_", "")]
    return next(iter(same), "") or next(iter(sorted(names, key=len)), "") or written.replace("_", " ").title()


def _kind(item: Any, module: Any) -> tuple[str, str]:
    """Returns (family of the catalogue, phrase), by the name of the class without its family's."""
    name = item.__name__.removeprefix(_family(module))
    family, phrase = next(kind for pattern, *kind in _TABLES["kinds"] if re.search(pattern, name))
    if family == "transformer block" and not re.search(r"[Aa]tt(entio)?n", inspect.getsource(item)):
        return "block", "block"
    return family, phrase


def _calls(callee: str, chosen: tuple[Argument, ...]) -> str:
    first, rest = chosen[0], chosen[1:]
    if callee != "{layer}":
        return f"{callee}({', '.join(argument.text for argument in chosen)})"
    return f"{callee}({', '.join([first.text, *(f'{argument.name}={argument.text}' for argument in rest)])})"


def _at_any_width(seed: Seed) -> Seed:
    """Returns the seed with a fixed width where its layer accepts no other width, because the configuration sets it and
    it happens to be the tried one. Raises what the library raises when the seed's width is variable and can't be
    changed."""
    if "D" not in seed.sizes:
        return seed
    small = small_sizes(seed)
    twice = next(bindings(seed, small | {"D": 2 * small["D"]}, ()))
    try:
        measure(twice, scope_of(seed))
        return seed
    except Exception:  # the boundary to the library under trial
        if "{D}" in (seed.constructor or ""):
            raise
    ports = tuple(
        port.model_copy(update={"layout": re.sub(r"\bD\b", str(small["D"]), port.layout)}) for port in seed.ports
    )
    sizes = {name: choices for name, choices in seed.sizes.items() if name != "D"}
    return seed.model_copy(update={"ports": ports, "sizes": sizes, "where": ()})


def _first_that_runs(item: Any, module: Any, maker: Maker | None) -> Seed:
    """Returns the seed with the first inputs that run on meta tensors. Raises Unfit."""
    function = item.forward if maker else item
    width = _hidden(item, maker) if maker else "64"
    problem = "no inputs were found for it"
    tried = 0
    for plan in arguments_of(function, width, maker.config if maker else None, is_function=maker is None):
        for chosen in itertools.islice(itertools.product(*plan), _TRIES):
            if (tried := tried + 1) > _TRIES:
                break
            call = _calls("{layer}" if maker else item.__name__, chosen)
            try:
                seed = _at_any_width(_candidate(item, module, maker, chosen, call))
                return _without_idle_settings(measured(seed, small_sizes(seed), _MOST_WEIGHTS))
            except Unfit as unfit:
                raise unfit from None
            except Exception as error:  # noqa: BLE001 - these inputs aren't for this class
                problem = problem if tried > 1 else _line(error)
    raise Unfit(f"fails with all inputs that were tried; the first: {problem}")


def _without_idle_settings(seed: Seed) -> Seed:
    """Returns the seed without the choices of implementations that its layer doesn't read."""
    made = seed.constructor
    if made is None or not any(name in made for name in _IMPLEMENTATIONS):
        return seed
    scope, binding = scope_of(seed), next(bindings(seed, small_sizes(seed), ()))
    with torch.device("meta"), torch.no_grad():
        layer = binding.layer(scope)
        with _recorded(PreTrainedConfig) as reads:
            binding.call(scope, layer, binding.inputs("meta"))
    for name, value in _IMPLEMENTATIONS.items():
        if f"_{name}" not in reads:
            made = re.sub(rf"(, )?{name}={value}", "", made).replace("(, ", "(")
    return seed.model_copy(update={"constructor": made})


def small_sizes(seed: Seed) -> dict[str, int]:
    """Returns the sizes at which a layer is tried."""
    return SMALL | (_SMALL_EXPERTS if "batched_mm" in (seed.constructor or "") else {})


def proposed(item: Any, module: Any) -> tuple[Seed, str]:
    """Returns (the seed, hash of its operators). Raises Unfit with the first reason."""
    if inspect.isfunction(item):
        seed = _first_that_runs(item, module, None)
        return seed, attempt(seed, small_sizes(seed), ())
    if not (inspect.isclass(item) and issubclass(item, nn.Module)):
        raise Unfit("it isn't a layer")
    reasons: list[str] = []
    for maker in _makers(item, module):
        try:
            seed = _first_that_runs(item, module, maker)
            return seed, attempt(seed, small_sizes(seed), ())
        except Unfit as unfit:
            reasons.append(str(unfit))
        except Exception as error:  # noqa: BLE001 - the boundary to the library under trial
            reasons.append(f"fails: {_line(error)}")
    raise Unfit(reasons[0] if reasons else "no way to make it was found")


def outcome(job: dict[str, Any]) -> dict[str, Any]:
    """Returns {"seed": …, "graph": …} or {"reason": …}."""
    try:
        module = importlib.import_module(job["module"])
    except Exception as error:  # noqa: BLE001 - a family that doesn't import here
        return {"reason": f"its family doesn't import: {_line(error)}"}
    try:
        seed, graph = proposed(getattr(module, job["name"]), module)
    except Unfit as unfit:
        return {"reason": str(unfit)}
    except Exception as error:  # noqa: BLE001 - the boundary to the library under trial
        return {"reason": f"fails: {_line(error)}"}
    return {"seed": seed.model_dump(mode="json"), "graph": graph}


create = serving(outcome)
