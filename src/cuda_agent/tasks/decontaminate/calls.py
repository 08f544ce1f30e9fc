"""Evaluates the calls in a task's source."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Protocol

from cuda_agent.tasks.decontaminate.spelling import ARITHMETIC, PASSES, SOURCES, STATEFUL, WEIGHTED, canonical
from cuda_agent.tasks.decontaminate.values import (
    LEAF,
    MAX_ITEMS,
    NUMBER,
    Api,
    Computation,
    Const,
    Instance,
    Items,
    LibraryLayer,
    Method,
    Rest,
    Scope,
    SourceClass,
    SourceFunction,
    Table,
    Tensor,
    Unfollowable,
    Value,
)

_MAX_DEPTH = 60
_CONTAINERS = ("Sequential", "ModuleList", "ParameterList", "OrderedDict")


class Follower(Protocol):
    """The parts of the interpreter that a call needs."""

    computation: Computation
    depth: int

    def run(self, body: Sequence[ast.stmt], scope: Scope) -> None: ...
    def value(self, node: ast.expr, scope: Scope) -> Value: ...
    def site(self) -> str: ...


def operator(follower: Follower, word: str, operands: Sequence[Value], exact: str = "") -> Value:
    """Returns the tensor of operator `word` on its operands, or a constant where no operand is a tensor."""
    children: list[int] = []
    numbers = []
    for operand in operands:
        found = tensors(operand)
        children += found
        if not found:
            numbers.append(text(operand))
            if word in ARITHMETIC and isinstance(operand, Const):
                children.append(follower.computation.add(NUMBER, (), numbers[-1]))
    if not any(tensors(operand) for operand in operands):
        return Const(f"{word}({', '.join(numbers)})")
    if word in PASSES:
        return Tensor(children[0])
    if word in WEIGHTED:
        exact += ",".join(map(str, children[1:]))
        children = children[:1]
    return Tensor(follower.computation.add(word, tuple(children), f"{exact}|{','.join(numbers)}"))


def tensors(value: Value) -> list[int]:
    """Returns the numbers of the nodes in a value, in order. Raises Unfollowable where they are too many."""
    found: list[int] = []
    waiting = [value]
    for _ in range(MAX_ITEMS):
        if not waiting:
            return found
        item = waiting.pop()
        if isinstance(item, Tensor | Rest):
            found.append(item.node)
        elif isinstance(item, Items):
            waiting += reversed(item.values)
        elif isinstance(item, Table):
            waiting += reversed(item.values.values())
    raise Unfollowable("too much in a list")


def text(value: Value, depth: int = 3) -> str:
    """Returns a text that tells apart values that aren't tensors; in lists down to the depth of indices."""
    if isinstance(value, Const):
        return value.text
    if isinstance(value, Items) and depth:
        return f"[{', '.join(text(item, depth - 1) for item in value.values[:8])}]"
    return value.name if isinstance(value, Api) else type(value).__name__


def call(follower: Follower, function: Value, given: list[Value], named: dict[str, Value]) -> Value:
    """Returns the value of `function(*given, **named)`."""
    if isinstance(function, Api):
        return _library(follower, function.name, given, named)
    if isinstance(function, Method):
        return _method(follower, function, given, named)
    operands = [*given, *named.values()]
    if isinstance(function, LibraryLayer):
        return operator(follower, function.word, operands, function.exact)
    if isinstance(function, Items) and function.chained:
        return _chain(follower, function, given)
    if isinstance(function, SourceFunction):
        return _inlined(follower, function, given, named)
    if isinstance(function, SourceClass):
        return _instance(follower, function, given, named)
    if isinstance(function, Instance):
        forward = member(function, "forward") or member(function, "__call__")
        return call(follower, forward, given, named) if forward else operator(follower, "?", operands)
    if isinstance(function, Tensor):
        operands.insert(0, function)
    return operator(follower, "?", operands)


def member(instance: Instance, name: str) -> Value | None:
    """Returns an attribute, or a method of the object's class or of its base classes in the source."""
    if name in instance.attributes:
        return instance.attributes[name]
    found = _find(instance.of, name, 0)
    if found is None:
        return None
    node, scope = found
    words = [d.id for d in node.decorator_list if isinstance(d, ast.Name)]
    return SourceFunction(node, scope, None if "staticmethod" in words else instance)


def inherited(instance: Instance, name: str) -> Value | None:
    """Returns the method of the base classes in the source."""
    for base in instance.of.node.bases:
        above = instance.of.scope.look(base.id) if isinstance(base, ast.Name) else None
        if isinstance(above, SourceClass) and (found := _find(above, name, 0)):
            return SourceFunction(*found, instance)
    return None


def _find(of: SourceClass, name: str, depth: int) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, Scope] | None:
    for statement in of.node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == name:
            return statement, of.scope
    for base in of.node.bases:
        above = of.scope.look(base.id) if isinstance(base, ast.Name) else None
        if isinstance(above, SourceClass) and depth < 10 and (found := _find(above, name, depth + 1)):
            return found
    return None


def _chain(follower: Follower, layers: Items, given: list[Value]) -> Value:
    passed = given
    for layer in layers.values:
        passed = [call(follower, layer, passed, {})]
    return passed[0] if passed else Const("nothing")


def _library(follower: Follower, name: str, given: list[Value], named: dict[str, Value]) -> Value:
    last = name.rsplit(".", 1)[-1]
    operands = [*given, *named.values()]
    if last in _CONTAINERS:
        return _container(last, given)
    if last in ("ModuleDict", "ParameterDict", "dict"):
        return given[0] if given and isinstance(given[0], Table) else Table(dict(named))
    if last in ("Parameter", "Buffer") or (canonical(last) in SOURCES and not any(map(tensors, operands))):
        return Tensor(follower.computation.add(LEAF, (), follower.site()))
    if "." not in name and (built := _builtin(follower, name, given)) is not None:
        return built
    if last == "partial" and given:
        return given[0]
    if name.startswith(("torch.nn.init.", "torch.autocast", "torch.no_grad", "warnings.")):
        return Const(last)
    if last[:1].isupper() and not any(map(tensors, operands)):
        word = canonical(name)
        plain = name.startswith("torch.nn.") and word not in STATEFUL
        return LibraryLayer(word, "" if plain else follower.site())
    if last == "checkpoint" and given:
        return call(follower, given[0], given[1:], {})
    return operator(follower, canonical(name), operands)


def _container(kind: str, given: list[Value]) -> Value:
    first = given[0] if given else None
    if kind == "OrderedDict" and isinstance(first, Items):
        pairs = [item.values[-1] for item in first.values if isinstance(item, Items) and item.values]
        return Items(pairs)
    if kind != "Sequential":
        return first if isinstance(first, Items) else Items([])
    if len(given) == 1 and isinstance(first, Items) and not first.chained:
        return Items(list(first.values), chained=True)
    if len(given) == 1 and isinstance(first, Table):
        return Items(list(first.values.values()), chained=True)
    return Items(list(given), chained=True)


def _builtin(follower: Follower, name: str, given: list[Value]) -> Value | None:
    first = given[0] if given else None
    if name in ("super", "print", "isinstance", "len", "hasattr", "setattr"):
        return Const(name)
    if name in ("list", "tuple", "iter", "sorted") and isinstance(first, Items):
        return first
    if name == "reversed" and isinstance(first, Items):
        return Items(list(reversed(first.values)))
    if name == "enumerate" and isinstance(first, Items):
        return Items([Items([Const(str(i), i), item]) for i, item in enumerate(first.values)])
    if name == "zip" and given and all(isinstance(item, Items) for item in given):
        columns = [item.values for item in given if isinstance(item, Items)]
        return Items([Items(list(row)) for row in zip(*columns, strict=False)])
    if name == "sum" and isinstance(first, Items) and first.values:
        total = first.values[0]
        for item in first.values[1:]:
            total = operator(follower, "add", [total, item])
        return total
    if name == "getattr" and len(given) > 1 and isinstance(given[1], Const) and isinstance(given[1].value, str):
        return attribute(follower, given[0], given[1].value)
    return None


def attribute(follower: Follower, of: Value, name: str) -> Value:
    """Returns the value of `of.name`."""
    if isinstance(of, Api):
        return Api(f"{of.name}.{name}")
    if isinstance(of, Instance):
        found = member(of, name)
        return found if found is not None else Method(of, name)
    if isinstance(of, LibraryLayer):
        return Tensor(follower.computation.add(LEAF, (), f"{of.exact}.{name}"))
    if isinstance(of, Tensor):
        if name in ("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "training"):
            return Const(f"{of.node}.{name}")
        if name in ("T", "mT", "H", "mH"):
            return operator(follower, "permute", [of])
        if name == "data":
            return of
        if name in ("values", "indices", "real", "imag", "weight", "bias"):
            return operator(follower, "item", [of], name)
    if isinstance(of, Tensor | Items | Table | Const):
        return Method(of, name)
    return Const(f"{text(of)}.{name}")


def _method(follower: Follower, method: Method, given: list[Value], named: dict[str, Value]) -> Value:
    of, name = method.of, method.name
    operands = [*given, *named.values()]
    if isinstance(of, Instance):
        return _module_method(follower, of, name, given)
    if isinstance(of, Items):
        if name in ("append", "extend", "insert") and given:
            of.grow(given[-1].values if name == "extend" and isinstance(given[-1], Items) else [given[-1]])
        return of
    if isinstance(of, Table):
        if name == "values":
            return Items(list(of.values.values()))
        if name == "items":
            return Items([Items([Const(key, key), value]) for key, value in of.values.items()])
        return of.values.get(text(given[0]), Const(name)) if given else Const(name)
    if isinstance(of, Tensor) and name in ("size", "dim", "numel", "stride", "item", "tolist", "is_floating_point"):
        return Const(f"{of.node}.{name}({', '.join(map(text, operands))})")
    return operator(follower, canonical(name), [of, *operands])


def _module_method(follower: Follower, of: Instance, name: str, given: list[Value]) -> Value:
    """Evaluates a method of `nn.Module`."""
    registers = ("register_buffer", "register_parameter", "add_module", "register_module")
    if name in registers and len(given) > 1 and isinstance(given[0], Const):
        kept = given[1]
        if isinstance(kept, Tensor) or name == "register_buffer":
            kept = Tensor(follower.computation.add(LEAF, (), follower.site()))
        of.attributes[str(given[0].value)] = kept
    return of if name in ("eval", "to", "float", "half", "cuda", "apply") else Const(name)


def _instance(follower: Follower, of: SourceClass, given: list[Value], named: dict[str, Value]) -> Value:
    made = Instance(of, {})
    for statement in of.node.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    made.attributes[target.id] = follower.value(statement.value, of.scope)
    constructor = member(made, "__init__")
    if constructor is not None:
        call(follower, constructor, given, named)
    return made


def _inlined(follower: Follower, function: SourceFunction, given: list[Value], named: Mapping[str, Value]) -> Value:
    if follower.depth >= _MAX_DEPTH:
        raise Unfollowable("calls nest too deeply")
    arguments = function.node.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    given = [function.owner, *given] if function.owner is not None else given
    if given and isinstance(given[-1], Rest) and given[-1].spread:
        missing = range(len(names) - len(arguments.defaults) - len(given) + 1)
        given = [*given[:-1], *(nth(follower, place) for place in missing), Rest(given[-1].node)]
    scope = Scope(above=function.scope)
    defaults = arguments.defaults
    for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        scope.names[name] = follower.value(default, function.scope)
    for only, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if value is not None:
            scope.names[only.arg] = follower.value(value, function.scope)
    scope.names |= dict(zip(names, given, strict=False))
    if arguments.vararg is not None:
        left = given[len(names) :]
        scope.names[arguments.vararg.arg] = left[0] if left and isinstance(left[0], Rest) else Items(left)
    known = {*names, *(argument.arg for argument in arguments.kwonlyargs)}
    scope.names |= {name: value for name, value in named.items() if name in known}
    if arguments.kwarg is not None:
        scope.names[arguments.kwarg.arg] = Table({n: v for n, v in named.items() if n not in known})
    for name in known - set(scope.names):
        scope.names[name] = Const(name)
    follower.depth += 1
    try:
        if isinstance(function.node, ast.Lambda):
            return follower.value(function.node.body, scope)
        follower.run(function.node.body, scope)
    finally:
        follower.depth -= 1
    return joined(follower, scope.returned)


def nth(follower: Follower, place: object) -> Value:
    """Returns an input by its place among those of `Rest`."""
    return Tensor(follower.computation.add(LEAF, (), f"input {place}"))


def joined(follower: Follower, values: Sequence[Value]) -> Value:
    """Returns one value for several possible ones."""
    different = list({repr(tensors(value)): value for value in values if tensors(value)}.values())
    if not different:
        return values[0] if values else Const("None")
    return different[0] if len(different) == 1 else operator(follower, "either", different)
