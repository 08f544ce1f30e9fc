"""Shortens a task's source to what says what is computed."""

import ast
from typing import Any

_INPUTS, _CONSTRUCTION = "get_inputs", "get_init_inputs"


class _Bare(ast.NodeTransformer):
    """Removes annotations, docstrings and constructors that do nothing."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        self.generic_visit(node)
        node.returns = None
        node.body = [line for line in node.body if not _is_text(line)] or [ast.Pass()]
        does_nothing = [ast.unparse(line) for line in node.body] == ["super().__init__()"]
        return None if does_nothing and len(node.args.args) == 1 else node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.body = [line for line in node.body if not _is_text(line)] or [ast.Pass()]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return None if node.value is None else ast.Assign([node.target], node.value, lineno=node.lineno)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node


def computed(source: str) -> str:
    """Returns the source without imports, annotations, docstrings, inputs, and constants that only these need. The
    arguments of the construction stand in a last line `model = Model(…)`."""
    kept: list[str] = []
    used: set[str] = {"Model"}
    tree = _Bare().visit(ast.parse(source))
    for node in tree.body:
        if getattr(node, "name", "") == _CONSTRUCTION:
            kept += _construction(node)
            used |= _names(node, ast.Load)
    for node in reversed(tree.body):
        is_left_out = getattr(node, "name", "") in (_INPUTS, _CONSTRUCTION) or _is_text(node)
        if is_left_out or isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if not isinstance(node, ast.Assign) or used & _names(node, ast.Store):
            kept.insert(0, ast.unparse(node).replace("\n\n", "\n"))
            used |= _names(node, ast.Load)
    return "\n".join(kept)


def _construction(node: ast.FunctionDef) -> list[str]:
    """Returns the line that makes the model; the whole function where that isn't plain."""
    last = node.body[-1]
    if len(node.body) > 1 or not isinstance(last, ast.Return) or not isinstance(last.value, ast.List | ast.Tuple):
        return [ast.unparse(node)]
    arguments = ", ".join(ast.unparse(one) for one in last.value.elts)
    return [f"model = Model({arguments})"] if arguments else []


def _names(node: ast.AST, kind: type[Any]) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, kind)}


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
