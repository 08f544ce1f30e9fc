"""Records the arguments with which a model's modules were constructed, and writes them as Python text. It runs in the
sandbox, beside the user's code."""

import dataclasses
import enum
import functools
import inspect
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from cuda_agent.release.extract.closure import Inexpressible, Sources
from cuda_agent.release.source_text import number_text

_MOST_ITEMS = 4096
_MOST_DEPTH = 12


@dataclasses.dataclass(frozen=True)
class Construction:
    """The arguments of a constructor's call: by name, those of `*args`, and the keyword-only ones."""

    named: dict[str, Any]
    positional: tuple[Any, ...] = ()
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)


class Constructions:
    """The construction of each module by identity. The modules are kept alive."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[nn.Module, Construction]] = {}

    def of(self, module: nn.Module) -> Construction | None:
        """Returns a module's construction. For a module that was copied or unpickled, it is that of another module of
        the same class with the same shapes of weights, or None: a later comparison with the original shows whether it
        fits."""
        if id(module) in self._known:
            return self._known[id(module)][1]
        wanted = _shapes(module)
        for known, construction in self._known.values():
            if type(known) is type(module) and _shapes(known) == wanted:
                return construction
        return None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records constructions while the context is open. The first `__init__` that a module enters is that of its own
        class."""
        before = sys.getprofile()
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _look(self, frame: types.FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name != "__init__" or not code.co_argcount:
            return
        values = frame.f_locals
        module = values.get(code.co_varnames[0])
        if not isinstance(module, nn.Module) or id(module) in self._known:
            return
        count = code.co_argcount + code.co_kwonlyargcount
        named = {name: values[name] for name in code.co_varnames[1 : code.co_argcount]}
        keywords = {name: values[name] for name in code.co_varnames[code.co_argcount : count]}
        rest = list(code.co_varnames[count:])
        positional = tuple(values[rest.pop(0)]) if code.co_flags & inspect.CO_VARARGS else ()
        keywords |= dict(values[rest.pop(0)]) if code.co_flags & inspect.CO_VARKEYWORDS else {}
        self._known[id(module)] = module, Construction(named, positional, keywords)


class Writer:
    """Writes values as text. `sources` provides the names that the text needs."""

    def __init__(self, constructions: Constructions, sources: Sources) -> None:
        self._constructions = constructions
        self._sources = sources
        self._depth = 0

    def module(self, module: nn.Module) -> str:
        """Returns the call that constructs a module. Raises Inexpressible."""
        found = self._constructions.of(module) or _by_attributes(module)
        kind = type(module)
        name = self._sources.reference(kind)
        if found is None:
            raise Inexpressible(f"the construction of {kind.__name__} wasn't recorded (it was copied or unpickled)")
        try:
            parameters = inspect.signature(kind.__init__).parameters
        except (TypeError, ValueError):
            parameters = types.MappingProxyType({})
        named = found.keywords if found.positional else found.named | found.keywords
        parts = [self.value(value, key) for key, value in found.named.items()] if found.positional else []
        parts += [self.value(value, "an argument") for value in found.positional]
        given = {
            key: value
            for key, value in named.items()
            if key != "device" and not _is_default(parameters.get(key), value)
        }
        return self._call(name, parts, given)

    def value(self, value: Any, where: str) -> str:
        """Returns a value as text. Raises Inexpressible, which names the argument `where` it stands."""
        self._depth += 1
        try:
            if self._depth > _MOST_DEPTH:
                raise Inexpressible(f"{where} is nested too deeply")
            return self._value(value, where)
        finally:
            self._depth -= 1

    def _value(self, value: Any, where: str) -> str:
        if isinstance(value, enum.Enum):
            return f"{self._sources.reference(type(value))}.{value.name}"
        if value is None or value is Ellipsis or type(value) in (bool, int, str, bytes):
            return repr(value)
        if type(value) is float:
            return number_text(value)
        if isinstance(value, torch.dtype):
            self._sources.need("import torch")
            return str(value)
        if isinstance(value, nn.Module):
            return self.module(value)
        if isinstance(value, (list, tuple, dict, set, torch.Size)):
            return self._nest(value, where)
        if isinstance(value, functools.partial):
            self._sources.need("import functools")
            parts = [self.value(item, where) for item in (value.func, *value.args)]
            return self._call("functools.partial", parts, value.keywords)
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            return self._sources.reference(value)
        if hasattr(value, "to_diff_dict") and hasattr(type(value), "from_dict"):
            return self._configuration(value)
        if dataclasses.is_dataclass(value):
            given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
            return self._call(self._sources.reference(type(value)), [], given)
        if type(value) is types.SimpleNamespace:
            self._sources.need("import types")
            return self._call("types.SimpleNamespace", [], vars(value))
        raise Inexpressible(f"its argument {where} is a {type(value).__name__}, which has no plain text")

    def _call(self, name: str, parts: list[str], given: Mapping[str, Any]) -> str:
        """Returns a call. `parts` are positional arguments as text, `given` values of keyword arguments."""
        keywords = [f"{key}={self.value(value, key)}" for key, value in given.items()]
        return f"{name}({', '.join([*parts, *keywords])})"

    def _nest(self, value: Any, where: str) -> str:
        if len(value) > _MOST_ITEMS:
            raise Inexpressible(f"its argument {where} holds {len(value)} values")
        if isinstance(value, dict):
            pairs = [(self.value(key, where), self.value(item, where)) for key, item in value.items()]
            if isinstance(value, OrderedDict):
                self._sources.need("import collections")
                return f"collections.OrderedDict([{', '.join(f'({key}, {item})' for key, item in pairs)}])"
            return f"{{{', '.join(f'{key}: {item}' for key, item in pairs)}}}"
        items = [self.value(item, where) for item in value]
        if isinstance(value, list):
            return f"[{', '.join(items)}]"
        if isinstance(value, set):
            return f"{{{', '.join(items)}}}" if items else "set()"
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"

    def _configuration(self, value: Any) -> str:
        """Returns a configuration of transformers: the values that differ from its class's, and the kind of
        attention."""
        name = self._sources.reference(type(value))
        try:
            usual = type(value)().to_dict()
        except Exception:  # noqa: BLE001 - the library's class may need arguments; then all values are written
            usual = {}
        skipped = ("transformers_version", "model_type", "architectures", "torch_dtype", "dtype")
        known = {key: item for key, item in value.to_dict().items() if key not in skipped and not key.startswith("_")}
        changed = {key: item for key, item in known.items() if key not in usual or usual[key] != item}
        attention = getattr(value, "_attn_implementation", None)
        if isinstance(attention, str):
            changed["attn_implementation"] = attention
        return self._call(name, [], changed)


def _shapes(module: nn.Module) -> dict[str, Any]:
    return {name: tuple(value.shape) for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}


def _is_default(parameter: inspect.Parameter | None, value: Any) -> bool:
    if parameter is None or parameter.default is inspect.Parameter.empty:
        return False
    default = parameter.default
    plain = (bool, int, float, str, type(None))
    return default is value or (type(default) is type(value) and isinstance(value, plain) and bool(default == value))


def _by_attributes(module: nn.Module) -> Construction | None:
    """Returns a construction from attributes that have the names of the constructor's parameters, or None."""
    try:
        parameters = list(inspect.signature(type(module).__init__).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    named: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            return None
        value = getattr(module, parameter.name, parameter.default)
        if isinstance(value, torch.Tensor) or (value is None and parameter.name in module._parameters):
            value = value is not None
        if parameter.name in ("device", "dtype"):
            continue
        if value is inspect.Parameter.empty:
            return None
        named[parameter.name] = value
    return Construction(named)
