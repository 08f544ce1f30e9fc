"""Evaluates the calls in a task's source."""

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce

from cuda_agent.tasks.decontaminate.spelling import ARITHMETIC, PASSES, SOURCES, STATEFUL, WEIGHTED, canonical
from cuda_agent.tasks.decontaminate.values import (
    LEAF,
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
    tensors,
    text,
)

_MAX_DEPTH = 60
_CONTAINERS = ("Sequential", "ModuleList", "ParameterList", "OrderedDict")


class Calls(ABC):
    """The part of the interpreter that evaluates calls."""

    def __init__(self) -> None:
        self.computation = Computation()
        self._depth = 0
        self._sites = 0

    @abstractmethod
    def run(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Follows statements, which change `scope`."""

    @abstractmethod
    def value(self, node: ast.expr, scope: Scope) -> Value:
        """Returns the value of an expression."""

    def leaf(self, exact: str = "") -> Tensor:
        """Returns an input, a weight or a constant; without a name it is a new one."""
        return Tensor(self.computation.add(LEAF, (), exact or self._site()))

    def _site(self) -> str:
        self._sites += 1
        return f"site {self._sites}"

    def operator(self, word: str, operands: Sequence[Value], exact: str = "") -> Value:
        """Returns the tensor of operator `word` on its operands, or a constant where no operand is a tensor."""
        children: list[int] = []
        numbers = []
        for operand in operands:
            found = tensors(operand)
            children += found
            if not found:
                numbers.append(text(operand))
                if word in ARITHMETIC and isinstance(operand, Const):
                    children.append(self.computation.add(NUMBER, (), numbers[-1]))
        if not any(tensors(operand) for operand in operands):
            return Const(f"{word}({', '.join(numbers)})")
        if word in PASSES:
            return Tensor(children[0])
        if word in WEIGHTED:
            exact += ",".join(map(str, children[1:]))
            children = children[:1]
        return Tensor(self.computation.add(word, tuple(children), f"{exact}|{','.join(numbers)}"))

    def call(self, function: Value, given: list[Value], named: dict[str, Value]) -> Value:
        """Returns the value of `function(*given, **named)`."""
        if isinstance(function, Api):
            return self._library(function.name, given, named)
        if isinstance(function, Method):
            return self._method(function, given, named)
        operands = [*given, *named.values()]
        if isinstance(function, LibraryLayer):
            return self.operator(function.word, operands, function.exact)
        if isinstance(function, Items) and function.chained:
            for layer in function.values:
                given = [self.call(layer, given, {})]
            return given[0] if given else Const("nothing")
        if isinstance(function, SourceFunction):
            return self._inlined(function, given, named)
        if isinstance(function, SourceClass):
            return self._instance(function, given, named)
        if isinstance(function, Instance):
            forward = function.member("forward") or function.member("__call__")
            return self.call(forward, given, named) if forward else self.operator("?", operands)
        if isinstance(function, Tensor):
            operands.insert(0, function)
        return self.operator("?", operands)

    def _library(self, name: str, given: list[Value], named: dict[str, Value]) -> Value:
        last = name.rsplit(".", 1)[-1]
        operands = [*given, *named.values()]
        if last in _CONTAINERS:
            return _container(last, given)
        if last in ("ModuleDict", "ParameterDict", "dict"):
            return given[0] if given and isinstance(given[0], Table) else Table(dict(named))
        if last in ("Parameter", "Buffer") or (canonical(last) in SOURCES and not any(map(tensors, operands))):
            return self.leaf()
        if "." not in name and (built := self._builtin(name, given)) is not None:
            return built
        if last == "partial" and given:
            return given[0]
        if name.startswith(("torch.nn.init.", "torch.autocast", "torch.no_grad", "warnings.")):
            return Const(last)
        if last[:1].isupper() and not any(map(tensors, operands)):
            word = canonical(name)
            plain = name.startswith("torch.nn.") and word not in STATEFUL
            return LibraryLayer(word, "" if plain else self._site())
        if last == "checkpoint" and given:
            return self.call(given[0], given[1:], {})
        return self.operator(canonical(name), operands)

    def _builtin(self, name: str, given: list[Value]) -> Value | None:
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
            return reduce(lambda total, item: self.operator("add", [total, item]), first.values)
        if name == "getattr" and len(given) > 1 and isinstance(given[1], Const) and isinstance(given[1].value, str):
            return self.attribute(given[0], given[1].value)
        return None

    def attribute(self, of: Value, name: str) -> Value:
        """Returns the value of `of.name`."""
        if isinstance(of, Api):
            return Api(f"{of.name}.{name}")
        if isinstance(of, Instance):
            found = of.member(name)
            return found if found is not None else Method(of, name)
        if isinstance(of, LibraryLayer):
            return self.leaf(f"{of.exact}.{name}")
        if isinstance(of, Tensor):
            if name in ("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "training"):
                return Const(f"{of.node}.{name}")
            if name in ("T", "mT", "H", "mH"):
                return self.operator("permute", [of])
            if name == "data":
                return of
            if name in ("values", "indices", "real", "imag", "weight", "bias"):
                return self.operator("item", [of], name)
        if isinstance(of, Tensor | Items | Table | Const):
            return Method(of, name)
        return Const(f"{text(of)}.{name}")

    def _method(self, method: Method, given: list[Value], named: dict[str, Value]) -> Value:
        of, name = method.of, method.name
        operands = [*given, *named.values()]
        if isinstance(of, Instance):
            return self._module_method(of, name, given)
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
        return self.operator(canonical(name), [of, *operands])

    def _module_method(self, of: Instance, name: str, given: list[Value]) -> Value:
        """Evaluates a method of `nn.Module`."""
        registers = ("register_buffer", "register_parameter", "add_module", "register_module")
        if name in registers and len(given) > 1 and isinstance(given[0], Const):
            kept = given[1]
            if isinstance(kept, Tensor) or name == "register_buffer":
                kept = self.leaf()
            of.attributes[str(given[0].value)] = kept
        return of if name in ("eval", "to", "float", "half", "cuda", "apply") else Const(name)

    def _instance(self, of: SourceClass, given: list[Value], named: dict[str, Value]) -> Value:
        made = Instance(of, {})
        for statement in of.node.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        made.attributes[target.id] = self.value(statement.value, of.scope)
        constructor = made.member("__init__")
        if constructor is not None:
            self.call(constructor, given, named)
        return made

    def _inlined(self, function: SourceFunction, given: list[Value], named: Mapping[str, Value]) -> Value:
        if self._depth >= _MAX_DEPTH:
            raise Unfollowable("calls nest too deeply")
        arguments = function.node.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        given = [function.owner, *given] if function.owner is not None else given
        if given and isinstance(given[-1], Rest) and given[-1].spread:
            missing = range(len(names) - len(arguments.defaults) - len(given) + 1)
            given = [*given[:-1], *(self.nth(place) for place in missing), Rest(given[-1].node)]
        scope = Scope(above=function.scope)
        defaults = arguments.defaults
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            scope.names[name] = self.value(default, function.scope)
        for only, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if value is not None:
                scope.names[only.arg] = self.value(value, function.scope)
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
        self._depth += 1
        try:
            if isinstance(function.node, ast.Lambda):
                return self.value(function.node.body, scope)
            self.run(function.node.body, scope)
        finally:
            self._depth -= 1
        return self.joined(scope.returned)

    def nth(self, place: object) -> Value:
        """Returns an input by its place among those of `Rest`."""
        return self.leaf(f"input {place}")

    def joined(self, values: Sequence[Value]) -> Value:
        """Returns one value for several possible ones."""
        different = list({repr(tensors(value)): value for value in values if tensors(value)}.values())
        if not different:
            return values[0] if values else Const("None")
        return different[0] if len(different) == 1 else self.operator("either", different)


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
