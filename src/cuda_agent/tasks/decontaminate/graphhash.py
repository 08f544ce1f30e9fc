"""Hashes a task's operator graph. Tasks with the same computation at other sizes have the same hash.

The hash ignores shapes, numbers (also constant tensors of one element), names, the order of nodes and inputs, float
types and casts between them, views that move nothing, whether a tensor is an input, a weight or a constant, dead nodes,
and whether a common value is computed once or again. It depends on the operators, the flow of values, flags that are
true, words, integer types, and the lengths of lists of numbers, which tell a 2-D window from a 3-D one.

Nodes are coloured by their computation and their users (Weisfeiler-Leman over the acyclic graph), and the colours are
hashed as a multiset.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.core.assets import inverted, tables
from cuda_agent.core.graph import DtypeArg, Graph, Node, NonFinite, Ref, ValueKind, base_name, reached
from cuda_agent.core.hashing import digest_text

#: The version changes when hashes can't be compared with those of an older version.
VERSION = 1
_ROUNDS = 2

_TABLES = tables(__file__)
_VIEWS = frozenset(_TABLES["views"].split())
_COMMUTE = frozenset(_TABLES["commute"].split())
_SAME = inverted(_TABLES["same"])


@dataclass
class _Value:
    """A value of the graph. `arguments` are (place, value's key); the place is None where the order has no meaning."""

    label: str
    arguments: list[tuple[str, str]] = field(default_factory=list)


def graph_hash(graph: Graph) -> str:
    """Returns the SHA-256 (hex) of `graph` with shapes abstracted."""
    values, outputs = _values(graph)
    live = set(reached(outputs, lambda key: (argument for _, argument in values[key].arguments)))
    order = [key for key in values if key in live]
    colours = {key: digest_text(values[key].label) for key in order}
    users: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for key in order:
        for place, argument in values[key].arguments:
            users[argument].append((place, key))
    for _ in range(_ROUNDS):
        for key in order:
            colours[key] = _mixed(colours[key], values[key].arguments, colours)
        for key in reversed(order):
            colours[key] = _mixed(colours[key], users[key], colours)
    ends = sorted(colours[key] for key in outputs)
    return digest_text(f"graph {VERSION}", *sorted(colours.values()), "outputs", *ends)


def graph_operators(graph: Graph) -> tuple[str, ...]:
    """Returns the base names of the operators, sorted, each once: `conv2d`, `relu`."""
    return tuple(sorted({_base(node.op) for node in graph.nodes if node.op != "getitem"}))


def _mixed(colour: str, around: Iterable[tuple[str, str]], colours: Mapping[str, str]) -> str:
    return digest_text(colour, *sorted(f"{place}:{colours[key]}" for place, key in around))


def _values(graph: Graph) -> tuple[dict[str, _Value], list[str]]:
    """Returns the values by key in topological order, and the keys of the outputs. A value that is computed twice has
    one key."""
    keys = {item.name: f"input {item.name}" for item in graph.inputs}
    numbers = {keys[item.name] for item in graph.inputs if item.kind is ValueKind.CONSTANT and item.meta.numel == 1}
    values = {keys[item.name]: _Value(f"given {_kind(item.meta.dtype)}") for item in graph.inputs}
    for node in graph.nodes:
        for name in _unknown(node, keys):
            keys[name] = f"unknown {name}"
            values[keys[name]] = _Value("unknown")
        passed = _passed_through(node)
        if passed is not None:
            keys[node.name] = keys[passed]
            continue
        value, exact = _value(node, _base(node.op), keys, numbers)
        key = digest_text(value.label, exact)
        keys[node.name] = key
        values.setdefault(key, value)
    return values, [keys[name] for name in graph.outputs if name in keys]


def _unknown(node: Node, keys: Mapping[str, str]) -> list[str]:
    """Returns the node's arguments without a definition, which a graph from an untrusted process can have."""
    found = [leaf for argument in (*node.args, *node.kwargs.values()) for _, leaf in _leaves(argument, "")]
    return [leaf.ref for leaf in found if isinstance(leaf, Ref) and leaf.ref not in keys]


def _passed_through(node: Node) -> str | None:
    """Returns the name of the argument that `node` only views, or casts to another float type."""
    first = node.args[0] if node.args else None
    if not isinstance(first, Ref):
        return None
    name = base_name(node.op)
    if name in _VIEWS:
        return first.ref
    to = node.kwargs.get("dtype")
    if name == "_to_copy" and isinstance(to, DtypeArg) and _kind(to.dtype) == "float":
        return first.ref
    return None


def _value(node: Node, name: str, keys: Mapping[str, str], numbers: Set[str]) -> tuple[_Value, str]:
    """Returns the value with its words, and all of its arguments exactly. `numbers` are the keys of tensors of one
    element."""
    given: dict[str, Any] = {str(place): argument for place, argument in enumerate(node.args)} | dict(node.kwargs)
    arguments: list[tuple[str, str]] = []
    words: list[str] = []
    longest = 0
    for place, argument in given.items():
        for inner, leaf in _leaves(argument, place):
            if isinstance(leaf, Ref):
                arguments += [] if keys[leaf.ref] in numbers else [(inner, keys[leaf.ref])]
            elif leaf is True or isinstance(leaf, str | DtypeArg | NonFinite):
                words.append(_word(inner, leaf))
            elif node.op == "getitem":
                words.append(str(leaf))
        if isinstance(argument, list) and argument and not any(isinstance(item, Ref) for item in argument):
            longest = max(longest, len(argument))
    exact = json.dumps([_exact(given[place], keys) for place in given] + sorted(node.kwargs))
    if node.op.startswith("aten.rsub"):
        arguments = [({"0": "1", "1": "0"}.get(place, place), key) for place, key in arguments]
    if name in _COMMUTE:
        arguments = [("", key) for _, key in arguments]
    return _Value(" ".join([name, str(longest), *sorted(words)]), arguments), exact


def _leaves(argument: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(argument, list):
        for index, item in enumerate(argument):
            yield from _leaves(item, f"{place}.{index}")
    else:
        yield place, argument


def _word(place: str, leaf: Any) -> str:
    if isinstance(leaf, DtypeArg):
        return f"to {_kind(leaf.dtype)}"
    return f"{place}={leaf}" if leaf is True else str(leaf.nonfinite if isinstance(leaf, NonFinite) else leaf)


def _exact(argument: Any, keys: Mapping[str, str]) -> Any:
    if isinstance(argument, Ref):
        return {"value": keys[argument.ref]}
    if isinstance(argument, list):
        return [_exact(item, keys) for item in argument]
    return repr(argument)


def _base(op: str) -> str:
    """Returns the operator's name without its overload: `aten.mm.default` -> `matmul`."""
    name = base_name(op).rstrip("_")
    return _SAME.get(name, name)


def _kind(dtype: str) -> str:
    if "float" in dtype or "complex" in dtype:
        return "float" if "float" in dtype else "complex"
    return "bool" if dtype == "bool" else "int"
