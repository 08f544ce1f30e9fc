"""Lowers operators that are formulas of simpler ones. The table `formulas.yaml` has their signatures and formulas.

A formula is Python text: assignments, then the result. Calls name operators of kernels, and `a if test else b` chooses
by arguments that are no tensors. Numbers are computed at once. Intermediate results aren't rounded to 16 bits.
"""

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cuda_agent.core.assets import tables
from cuda_agent.core.graph import Node, Ref
from cuda_agent.playbook import ir
from cuda_agent.playbook.lower import Builder, CantLower, Lowering
from cuda_agent.playbook.operators.losses import reduced

#: class of the syntax tree -> the kernels' operator.
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.USub: "neg", ast.Not: "not", ast.And: "and",
    ast.Or: "or", ast.Lt: "lt", ast.Gt: "gt", ast.Eq: "eq", ast.LtE: "le",
    ast.GtE: "ge",
}  # fmt: skip
#: operators with a bool result that are computed in their operands' type.
_TESTS = frozenset(("lt", "gt", "le", "ge", "eq", "isnan", "isinf"))
_LOGICAL = frozenset(("and", "or", "not"))
#: the same for numbers.
_NUMBERS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "neg": operator.neg,
    "eq": operator.eq, "or": operator.or_,
}  # fmt: skip


_MOST_DEGREE = 16


class _Name(str):
    """The name of a value. An argument may be a text too."""


@dataclass
class _Formula:
    """Adds the values of one formula. `known` are its arguments and variables."""

    b: Builder
    node: Node
    known: dict[str, Any]

    def value(self, at: ast.expr, name: str | None = None) -> Any:
        """Adds the value of an expression, rounded to the result's type where a name is given. A name may be empty."""
        match at:
            case ast.Constant():
                return at.value
            case ast.Name():
                return self.known[at.id]
            case ast.IfExp():
                return self.value(at.body if self.value(at.test) else at.orelse, name)
            case ast.Compare(ops=[ast.Is() | ast.IsNot() as kind], left=left):
                return (self.value(left) is None) == isinstance(kind, ast.Is)
            case ast.Tuple(elts=parts):
                return tuple(self.value(part) for part in parts)
            case ast.Call(func=ast.Name(id="rounded"), args=[part]):
                return _Name(self.value(part, ""))
            case ast.Call(func=ast.Name(id="recurrence"), args=[degree, first, following]):
                return self._recurrence(self.value(degree), first, following)
            case ast.Call(func=ast.Name(id=op), args=parts):
                pass
            case ast.Compare(ops=[kind], left=left, comparators=[right]):
                op, parts = _OPERATORS[type(kind)], [left, right]
            case ast.BinOp(op=kind, left=left, right=right):
                op, parts = _OPERATORS[type(kind)], [left, right]
            case ast.BoolOp(op=kind, values=parts) | ast.UnaryOp(op=kind, operand=parts):
                op, parts = _OPERATORS[type(kind)], parts if isinstance(parts, list) else [parts]
            case _:
                raise AssertionError(f"no rule for {ast.unparse(at)}")
        return self._operation(op, [self.value(part) for part in parts], name)

    def _operation(self, op: str, args: list[Any], name: str | None) -> Any:
        if op == "refused":
            raise CantLower(args[0])
        if op == "reduced":
            return reduced(self.b, self.node, *args)
        if op == "gates":
            return self._gates(*args)
        if not any(isinstance(arg, _Name) for arg in args) and op in _NUMBERS:
            return _NUMBERS[op](*args)
        dtype = self.b.out(self.node).dtype
        if name is not None:
            return self.b.pointwise(op, *args, dtype=dtype, name=name or self.b.fresh(self.node.name))
        if op in _TESTS or op in _LOGICAL:
            args = [arg if isinstance(arg, str) else ir.as_scalar_of(arg, dtype) for arg in args]
            return _Name(self.b.test(op, *args, at="b" if op in _LOGICAL else ir.compute_type(dtype)))
        return _Name(self.b.pointwise(op, *args, dtype=self.b.internal(dtype)))

    def _recurrence(self, degree: Any, first: ast.expr, following: ast.expr) -> str:
        """Adds the node's value p_n with p_0 = 1, p_1 = `first`, and p_{k+1} = `following` of k, p_k (`now`) and
        p_{k-1} (`before`)."""
        x, known = self.known["x"], self.known
        if not isinstance(x, _Name) or isinstance(degree, str) or degree != int(degree) or degree > _MOST_DEGREE:
            raise CantLower(f"has a degree that isn't a number up to {_MOST_DEGREE}")
        if degree <= 0:
            constant = self.b.pointwise("copy", float(degree == 0), dtype=self.b.internal(known["dtype"]))
            return self.b.finish(self.node, self.b.expand(constant, self.b.shape_of(x)))
        known |= {"before": 1.0, "now": self.value(first)}
        for known["k"] in range(1, int(degree)):
            known["before"], known["now"] = known["now"], self.value(following)
        return self.b.finish(self.node, known["now"])

    def _gates(self, value: str, bias: str | None, count: int) -> list[_Name]:
        """Adds the gates of a value [..., count · hidden], with their biases where it has some."""
        b, dtype = self.b, self.b.inner(value)

        def parts(name: str) -> list[str]:
            last = b.rank(name) - 1
            hidden = b.shape_of(name)[last] // count
            return [b.slice(name, last, place * hidden, hidden, name=b.fresh("gate")) for place in range(count)]

        gates = parts(value)
        if bias is not None:
            pairs = zip(gates, parts(bias), strict=True)
            gates = [b.pointwise("add", gate, part, dtype=dtype) for gate, part in pairs]
        return [_Name(gate) for gate in gates]


def _lowering(text: str) -> Lowering:
    """Returns the lowering by a formula, given as the text of a function."""
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    *assignments, last = function.body
    assert isinstance(last, ast.Expr)
    parameters, result = function.args.args, last.value
    usual = [ast.literal_eval(default) for default in function.args.defaults]
    usual = [None] * (len(parameters) - len(usual)) + usual

    def lower(b: Builder, node: Node) -> str | tuple[str | None, ...]:
        formula = _Formula(b, node, {"dtype": b.out(node).dtype})
        for place, (parameter, default) in enumerate(zip(parameters, usual, strict=True)):
            raw = node.argument(place, parameter.arg, default)
            value = b.plain(raw)
            formula.known[parameter.arg] = _Name(value) if isinstance(raw, Ref) else value
        for statement in assignments:
            assert isinstance(statement, ast.Assign)
            target, value = statement.targets[0], formula.value(statement.value)
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = value if isinstance(target, ast.Tuple) else [value]
            formula.known |= {ast.unparse(one): found for one, found in zip(names, values, strict=True)}
        made: str | tuple[str | None, ...] = formula.value(result, node.name)
        return made

    return lower


def _table() -> dict[str, Lowering]:
    made: dict[str, Lowering] = {}
    for signature, formula in tables(__file__).items():
        names, _, parameters = signature.partition("(")
        body = "".join(f"  {line}\n" for line in formula.splitlines())
        made |= dict.fromkeys(names.split(), _lowering(f"def formula({parameters}:\n{body}"))
    return made


#: operator -> its lowering by a formula.
FORMULAS: dict[str, Lowering] = _table()
