"""Reads the computation of a task's `forward` from its syntax tree.

The source is interpreted symbolically, and nothing is executed. Locals, helpers, submodules and containers are inlined,
and the result is a graph of operators. So names, comments, numbers, the order of statements, and whether a layer is a
module or a function have no effect. A loop over an unknown sequence is followed once, and both sides of a branch are
followed.
"""

import ast
from collections.abc import Sequence

from cuda_agent.tasks.decontaminate.calls import Calls
from cuda_agent.tasks.decontaminate.spelling import OPERATORS
from cuda_agent.tasks.decontaminate.values import (
    LEAF,
    Api,
    Computation,
    Const,
    Instance,
    Items,
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

_MAX_STEPS = 200_000
_MAX_UNROLLED = 256


def follow(tree: ast.Module) -> Computation:
    """Returns the computation of class `Model` (else of the last class with `forward`, else of the functions) in
    `tree`. Raises Unfollowable where there is none, or where it has no end."""
    follower = _Follower()
    try:
        follower.run(tree.body, follower.globals)
        follower.finish()
    except RecursionError:
        raise Unfollowable("it nests too deeply") from None
    return follower.computation


class _Follower(Calls):
    def __init__(self) -> None:
        super().__init__()
        self.globals = Scope()
        self._steps = 0

    def finish(self) -> None:
        """Follows the model from its arguments to its outputs."""
        result = self._answer(self._main())
        nodes = tensors(result)
        if not nodes or all(self.computation.nodes[node].label == LEAF for node in nodes):
            raise Unfollowable("nothing is computed")
        self.computation.root = self.computation.add("return", tuple(nodes))

    def _main(self) -> list[SourceFunction]:
        classes = [value for value in self.globals.names.values() if isinstance(value, SourceClass)]
        named = self.globals.names.get("Model")
        if isinstance(named, SourceClass):
            classes.append(named)
        for found in reversed(classes):
            if found.find("forward") is not None:
                made = self.call(found, self._arguments(found), {})
                forward = made.member("forward") if isinstance(made, Instance) else None
                if isinstance(forward, SourceFunction):
                    return [forward]
        getters = ("get_inputs", "get_init_inputs")
        functions = [
            f for name, f in self.globals.names.items() if name not in getters and isinstance(f, SourceFunction)
        ]
        if not functions:
            raise Unfollowable("no class with a forward, and no function")
        return functions

    def _arguments(self, of: SourceClass) -> list[Value]:
        constructor = of.find("__init__")
        if constructor is None:
            return []
        arguments = constructor[0].args
        required = len(arguments.args) - len(arguments.defaults)
        return [Const(f"argument {a.arg}") for a in arguments.args[1 : max(1, required)]]

    def _answer(self, functions: Sequence[SourceFunction]) -> Value:
        answers: list[Value] = []
        for function in functions:
            arguments = function.node.args
            names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
            names = names[1:] if function.owner is not None else names
            literal = dict(zip(reversed(names), reversed(arguments.defaults), strict=False))
            given: list[Value] = [
                self.value(literal[name], self.globals)
                if isinstance(literal.get(name), ast.Constant) and literal[name].value is not None  # type: ignore[attr-defined]
                else self.leaf(f"input {name}")
                for name in names
            ]
            named: dict[str, Value] = {only.arg: self.leaf(f"input {only.arg}") for only in arguments.kwonlyargs}
            if arguments.vararg is not None:
                given.append(Rest(self.computation.add(LEAF, (), f"inputs {arguments.vararg.arg}")))
            answers.append(self.call(function, given, named))
        return Items(answers)

    def run(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self._step()
            handler = getattr(self, f"_do_{type(statement).__name__}", None)
            if handler is not None:
                handler(statement, scope)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise Unfollowable("too many steps")

    def _do_Import(self, statement: ast.Import, scope: Scope) -> None:
        for alias in statement.names:
            name = alias.name if alias.asname else alias.name.split(".")[0]
            scope.names[alias.asname or name] = Api(name)

    def _do_ImportFrom(self, statement: ast.ImportFrom, scope: Scope) -> None:
        for alias in statement.names:
            scope.names[alias.asname or alias.name] = Api(f"{statement.module or ''}.{alias.name}")

    def _do_FunctionDef(self, statement: ast.FunctionDef, scope: Scope) -> None:
        scope.names[statement.name] = SourceFunction(statement, scope)

    def _do_ClassDef(self, statement: ast.ClassDef, scope: Scope) -> None:
        scope.names[statement.name] = SourceClass(statement, scope)

    def _do_Return(self, statement: ast.Return, scope: Scope) -> None:
        if statement.value is not None:
            scope.returned.append(self.value(statement.value, scope))

    def _do_Assign(self, statement: ast.Assign, scope: Scope) -> None:
        value = self.value(statement.value, scope)
        for target in statement.targets:
            self._assign(target, value, scope)

    def _do_AnnAssign(self, statement: ast.AnnAssign, scope: Scope) -> None:
        if statement.value is not None:
            self._assign(statement.target, self.value(statement.value, scope), scope)

    def _do_AugAssign(self, statement: ast.AugAssign, scope: Scope) -> None:
        word = OPERATORS.get(type(statement.op).__name__, "?")
        before, by = self.value(statement.target, scope), self.value(statement.value, scope)
        if isinstance(before, Items) and isinstance(by, Items) and word == "add":
            before.grow(by.values)
            return
        self._assign(statement.target, self.operator(word, [before, by]), scope)

    def _do_Expr(self, statement: ast.Expr, scope: Scope) -> None:
        if isinstance(statement.value, ast.Constant):
            return
        result = self.value(statement.value, scope)
        function = statement.value.func if isinstance(statement.value, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr.endswith("_") and isinstance(function.value, ast.Name):
            self._assign(function.value, result, scope)

    def _do_If(self, statement: ast.If, scope: Scope) -> None:
        self.value(statement.test, scope)
        before = dict(scope.names)
        self.run(statement.body, scope)
        then, scope.names = scope.names, before
        self.run(statement.orelse, scope)
        for name, value in then.items():
            other = scope.names.get(name, value)
            scope.names[name] = value if other is value else self.joined([value, other])

    def _do_For(self, statement: ast.For, scope: Scope) -> None:
        items = self.value(statement.iter, scope)
        for item in self._each(items):
            self._assign(statement.target, item, scope)
            self.run(statement.body, scope)

    def _each(self, items: Value) -> list[Value]:
        if isinstance(items, Items):
            return list(items.values[:_MAX_UNROLLED])
        if isinstance(items, Rest):
            return [Tensor(items.node)]
        if isinstance(items, Tensor):
            return [self.operator("item", [items])]
        return [Const(f"each of {text(items)}")]

    def _do_While(self, statement: ast.While | ast.With, scope: Scope) -> None:
        self.run(statement.body, scope)

    _do_With = _do_While

    def _do_Try(self, statement: ast.Try, scope: Scope) -> None:
        self.run([*statement.body, *statement.orelse, *statement.finalbody], scope)

    def _assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, scope)
            if isinstance(owner, Instance):
                owner.attributes[target.attr] = value
        elif isinstance(target, ast.Subscript):
            self._assign_item(target, value, scope)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, value, scope)
        elif isinstance(target, ast.Tuple | ast.List):
            for index, inner in enumerate(target.elts):
                self._assign(inner, self._item(value, Const(str(index), index)), scope)

    def _assign_item(self, target: ast.Subscript, value: Value, scope: Scope) -> None:
        owner, index = self.value(target.value, scope), self.value(target.slice, scope)
        if isinstance(owner, Table):
            owner.values[text(index)] = value
        elif isinstance(owner, Tensor):
            self._assign(target.value, self.operator("setitem", [owner, index, value]), scope)

    def value(self, node: ast.expr, scope: Scope) -> Value:
        self._step()
        handler = getattr(self, f"_of_{type(node).__name__}", None)
        return handler(node, scope) if handler is not None else Const(type(node).__name__)

    def _of_Constant(self, node: ast.Constant, scope: Scope) -> Value:
        # Python refuses to print integers of thousands of digits in decimal.
        return Const(hex(node.value) if type(node.value) is int else repr(node.value), node.value)

    def _of_Name(self, node: ast.Name, scope: Scope) -> Value:
        found = scope.look(node.id)
        return found if found is not None else Api(node.id)

    def _of_Attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        return self.attribute(self.value(node.value, scope), node.attr)

    def _of_Call(self, node: ast.Call, scope: Scope) -> Value:
        function = self._of_super(node.func, scope) or self.value(node.func, scope)
        given: list[Value] = []
        for argument in node.args:
            value = self.value(argument.value if isinstance(argument, ast.Starred) else argument, scope)
            if isinstance(argument, ast.Starred) and isinstance(value, Items):
                given += value.values
            elif isinstance(argument, ast.Starred) and isinstance(value, Rest):
                given.append(Rest(value.node, spread=True))
            else:
                given.append(value)
        named: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif isinstance(value, Table):
                named |= value.values
        return self.call(function, given, named)

    def _of_super(self, node: ast.expr, scope: Scope) -> Value | None:
        """Returns the method of `super().name`, where the base class is in the source."""
        above = node.value if isinstance(node, ast.Attribute) else None
        if not (isinstance(above, ast.Call) and isinstance(above.func, ast.Name) and above.func.id == "super"):
            return None
        assert isinstance(node, ast.Attribute)
        owner = next((value for value in scope.names.values() if isinstance(value, Instance)), None)
        found = None if owner is None else owner.of.inherited(node.attr)
        return None if found is None else SourceFunction(*found, owner)

    def _of_BinOp(self, node: ast.BinOp, scope: Scope) -> Value:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        if isinstance(left, Items) and isinstance(right, Items) and isinstance(node.op, ast.Add):
            return Items([*left.values, *right.values], left.chained)
        if isinstance(left, Items) and isinstance(node.op, ast.Mult) and not tensors(left):
            return left
        return self.operator(OPERATORS.get(type(node.op).__name__, "?"), [left, right])

    def _of_UnaryOp(self, node: ast.UnaryOp, scope: Scope) -> Value:
        operand = self.value(node.operand, scope)
        if isinstance(operand, Const) and isinstance(operand.value, int) and isinstance(node.op, ast.USub):
            return Const(f"-{operand.text}", -operand.value)
        word = OPERATORS.get(type(node.op).__name__)
        return self.operator(word, [operand]) if word else operand

    def _of_Compare(self, node: ast.Compare, scope: Scope) -> Value:
        result = self.value(node.left, scope)
        for op, right in zip(node.ops, node.comparators, strict=True):
            result = self.operator(OPERATORS.get(type(op).__name__, "?"), [result, self.value(right, scope)])
        return result

    def _of_BoolOp(self, node: ast.BoolOp, scope: Scope) -> Value:
        word = OPERATORS[type(node.op).__name__]
        return self.operator(word, [self.value(value, scope) for value in node.values])

    def _of_IfExp(self, node: ast.IfExp, scope: Scope) -> Value:
        return self.joined([self.value(node.body, scope), self.value(node.orelse, scope)])

    def _of_Tuple(self, node: ast.Tuple | ast.List, scope: Scope) -> Value:
        values: list[Value] = []
        for element in node.elts:
            value = self.value(element.value if isinstance(element, ast.Starred) else element, scope)
            values += value.values if isinstance(element, ast.Starred) and isinstance(value, Items) else [value]
        return Items(values)

    _of_List = _of_Tuple

    def _of_Dict(self, node: ast.Dict, scope: Scope) -> Value:
        pairs = zip(node.keys, node.values, strict=True)
        return Table({text(self.value(k, scope)): self.value(v, scope) for k, v in pairs if k is not None})

    def _of_ListComp(self, node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> Value:
        inner = Scope(above=scope)
        first = node.generators[0]
        values: list[Value] = []
        for item in self._each(self.value(first.iter, scope)):
            self._assign(first.target, item, inner)
            for further in node.generators[1:]:
                self._assign(further.target, self._each(self.value(further.iter, inner))[0], inner)
            values.append(self.value(node.elt, inner))
        return Items(values)

    _of_GeneratorExp = _of_ListComp

    def _of_Lambda(self, node: ast.Lambda, scope: Scope) -> Value:
        return SourceFunction(node, scope)

    def _of_NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.value(node.value, scope)
        self._assign(node.target, value, scope)
        return value

    def _of_Slice(self, node: ast.Slice, scope: Scope) -> Value:
        parts = [self.value(part, scope) for part in (node.lower, node.upper, node.step) if part is not None]
        return Const(f"slice {', '.join(map(text, parts))}")

    def _of_Subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        return self._item(self.value(node.value, scope), self.value(node.slice, scope))

    def _item(self, of: Value, index: Value) -> Value:
        if isinstance(of, Items):
            place = index.value if isinstance(index, Const) else None
            if isinstance(place, int) and -len(of.values) <= place < len(of.values):
                return of.values[place]
            return Items(list(of.values), of.chained) if text(index).startswith("slice") else self.joined(of.values)
        if isinstance(of, Rest):
            return self.nth(text(index))
        if isinstance(of, Table):
            return of.values.get(text(index)) or self.joined(list(of.values.values()))
        if isinstance(of, Tensor):
            shown = not tensors(index) and set(text(index).strip("[]").split(", ")) <= {"slice ", "None", "Ellipsis"}
            return of if shown else self.operator("item", [of, index], text(index))
        return Const(f"{text(of)}[{text(index)}]")
