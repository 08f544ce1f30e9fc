"""Guesses arguments of transformers layers from their names: values for constructors, tensors for `forward`."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cuda_agent.core.assets import inverted, tables
from cuda_agent.tasks.crawl.trial import Unfit

_TABLES = tables(__file__)
_CONSTRUCTOR = inverted(_TABLES["constructor"])
_NAMES: dict[str, list[str]] = {kind: names.split() for kind, names in _TABLES["forward"].items()}


@dataclass(frozen=True)
class Argument:
    """A choice for one argument of a call: its text, and the ports in it."""

    name: str
    text: str
    ports: tuple[dict[str, Any], ...] = ()


def constructor_values(required: list[str]) -> dict[str, str]:
    """Returns the texts of the arguments without a default. Raises Unfit for an unknown name."""
    unknown = [name for name in required if name not in _CONSTRUCTOR]
    if unknown:
        raise Unfit(f"its constructor needs {unknown[0]}")
    return {name: _CONSTRUCTOR[name] for name in required}


def _tensor(name: str, layout: str, **about: Any) -> Argument:
    return Argument(name, f"{{{name}}}", ({"name": name, "layout": layout, **about},))


def _firsts(name: str, width: str, config: Any) -> list[Argument]:
    """Returns layouts for the tensor that a layer transforms, the most common first."""
    if name in _NAMES["ids"]:
        return [_tensor(name, "B T", dtype="int64", values="indices", high=str(getattr(config, "vocab_size", 1000)))]
    if name == "pixel_values":
        size, channels = getattr(config, "image_size", 224), getattr(config, "num_channels", 3)
        return [_tensor(name, f"B {channels} {size} {size}")] if isinstance(size, int) else []
    found = [_tensor(name, f"B T {width}"), _tensor(name, f"N {width}"), _tensor(name, f"B {width} H W")]
    if width == "D":
        found += [_tensor(name, "B T intermediate_size"), _tensor(name, "B H W D"), _tensor(name, "B D T")]
    else:
        inner = getattr(config, "intermediate_size", None)
        found += [_tensor(name, f"B T {inner}")] if isinstance(inner, int) else []
    return found


def _choices(name: str, width: str) -> list[Argument]:
    """Returns the choices for another argument. Raises Unfit for an unknown name."""
    kind = next((kind for kind, names in _NAMES.items() if name in names), "none" if "mask" in name else "")
    if kind in ("none", "false"):
        return [Argument(name, kind.capitalize())]
    if kind == "cosines":
        pairs = (
            tuple({"name": port, "layout": layout} for port in ("cos", "sin"))
            for layout in ("B T 64", "T 64", "B T 32", "T 32", "B T 128")
        )
        return [Argument(name, "({cos}, {sin})", pair) for pair in pairs]
    if kind not in _TABLES["layouts"]:
        raise Unfit(f"its forward needs {name}")
    about = _TABLES["values"].get(kind, {})
    return [_tensor(name, layout.replace("WIDTH", width), **about) for layout in _TABLES["layouts"][kind]]


def _rotary_choices(names: list[str]) -> list[list[Argument]]:
    """Returns the choices for rotary functions: queries and keys with heads, cosines and sines without."""
    tables = {"cos", "sin"} | {name for name in names if "cos" in name or "sin" in name}
    return [
        [
            _tensor(name, layout)
            for layout in (("B T 64", "T 64", "B T 32") if name in tables else ("B G T 64", "B T G 64"))
        ]
        for name in names
    ]


def arguments_of(function: Any, width: str, config: Any, *, is_function: bool) -> Iterator[list[list[Argument]]]:
    """Yields choices for every argument: first for the required ones, then also for those that carry positions. Raises
    Unfit when an argument is unknown."""
    parameters = [item for name, item in inspect.signature(function).parameters.items() if name != "self"]
    named = [item for item in parameters if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)]
    if not named:
        raise Unfit("its forward names no tensor")
    required = [item.name for item in named[1:] if item.default is item.empty]
    if is_function:
        yield _rotary_choices([named[0].name, *required])
        return
    first = _firsts(named[0].name, width, config)
    yield [first, *(_choices(name, width) for name in required)]
    positional = [*_NAMES["cosines"], *_NAMES["positions"], *_NAMES["others"]]
    extra = [item.name for item in named[1:] if item.name in positional and item.name not in required]
    for count in range(1, len(extra) + 1):
        for names in ([name] for name in extra) if count == 1 else [extra[:count]]:
            yield [first, *(_choices(name, width) for name in (*required, *names))]
