"""The rule for `model_new.py`: it may hold weights, allocate, look at shapes and call `cuda_extension`, and no more.

`python_tree.yaml` lists the names that it may use.
"""

import ast

from cuda_agent.core.assets import word_lists
from cuda_agent.core.records import Violation
from cuda_agent.judge.guard.declarations import MOST

_CONSTRUCTION, _LOADING, _RUNNING = "construction", "loading", "running"
_SCALARS = {"int", "float", "bool", "str"}


def check_module(text: str, path: str) -> list[Violation]:
    """Returns the broken rules in `model_new.py`, with their lines. A text that doesn't parse gives an empty list,
    since the loader reports the syntax error."""
    return ModuleChecker(path).check(text)


class ModuleChecker(ast.NodeVisitor):
    """Collects what the file defines in one pass and checks it in another. `_phase` is when the present code runs."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.found: list[Violation] = []
        self._lists = word_lists(__file__)
        self._phase = _CONSTRUCTION
        self._torch, self._nn, self._math = {"torch"}, {"nn"}, {"math"}
        self._extension = {"cuda_extension"}
        self._imported: set[str] = set()
        #: names that stand for a module here, and which.
        self._modules: dict[str, str] = {}
        self._before_a_dot: set[ast.expr] = set()
        self._defined: set[str] = set()
        self._methods: set[str] = set()
        self._local_modules: set[str] = set()
        self._tensors: set[str] = set()
        self._callable: set[str] = set()
        self._passed_through: set[ast.expr] = set()

    def collect(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.split(".")[0]
                    self._name_module(alias.name, alias.asname or top)
                    self._modules[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._name_module(f"{node.module}.{alias.name}", alias.asname or alias.name)
            elif isinstance(node, ast.ClassDef | ast.FunctionDef):
                self._defined.add(node.name)
                if isinstance(node, ast.ClassDef):
                    self._methods |= {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and self._builds_own_module(node.value):
                self._local_modules |= {target.attr for target in node.targets if isinstance(target, ast.Attribute)}

    def _name_module(self, name: str, alias: str) -> None:
        self._imported.add(alias)
        if name in ("torch.nn", "torch.nn.init"):
            self._modules[alias] = name
        for module, names in (
            ("torch", self._torch),
            ("torch.nn", self._nn),
            ("math", self._math),
            ("cuda_extension", self._extension),
        ):
            if name == module:
                names.add(alias)

    def _builds_own_module(self, value: ast.expr) -> bool:
        """Whether it is a call of a class of this file, or a ModuleList of such calls."""
        if not isinstance(value, ast.Call):
            return False
        if isinstance(value.func, ast.Name):
            return value.func.id in self._defined
        if isinstance(value.func, ast.Attribute) and value.func.attr in ("ModuleList", "ModuleDict"):
            calls = [node for argument in value.args for node in ast.walk(argument) if isinstance(node, ast.Call)]
            names = [call.func.id for call in calls if isinstance(call.func, ast.Name) and call.func.id != "range"]
            return bool(names) and all(name in self._defined for name in names)
        return False

    def check(self, text: str) -> list[Violation]:
        """Returns the broken rules in a module's text. A text that nests too deeply to be checked breaks one, since
        Python might still compile it."""
        try:
            try:
                tree = ast.parse(text)
            except (SyntaxError, ValueError):
                return []
            self.collect(tree)
            self.visit(tree)
        except (RecursionError, MemoryError, ValueError):
            # A ValueError comes of printing a number with thousands of digits.
            detail = f"{self.path}: an expression is too deep or a number too long to be checked: compute it in steps"
            return [Violation(rule="too_deep", layer="syntax", detail=detail)]
        return self.found[:MOST]

    def _add(self, rule: str, node: ast.AST, what: str) -> None:
        line = getattr(node, "lineno", 0)
        self.found.append(Violation(rule=rule, layer="syntax", detail=f"{self.path}:{line}: {what[:200]}"))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name not in self._lists["modules"]:
                self._add("forbidden_import", node, f"import {alias.name}")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            allowed = (
                (node.module == "torch" and alias.name in self._lists["from torch"])
                or (node.module == "torch.nn" and (alias.name in self._lists["nn names"] or alias.name == "init"))
                or alias.name in self._lists.get(f"names of {node.module}", ())
                or node.module in ("math", "__future__", "cuda_extension")
            )
            if not allowed or node.level:
                self._add("forbidden_import", node, f"from {node.module} import {alias.name}")
            elif node.module in ("math", "cuda_extension"):
                self._callable.add(alias.asname or alias.name)
            if alias.name == "*":
                self._add("forbidden_import", node, f"from {node.module} import *")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            if not (
                self._is_nn(base, "Module") or (isinstance(base, ast.Name) and base.id in (*self._defined, "Module"))
            ):
                self._add("forbidden_base", base, f"class {node.name}({ast.unparse(base)}): only nn.Module")
        if node.keywords:
            self._add("forbidden_base", node, f"class {node.name} has a metaclass")
        self._check_decorators(node)
        for item in node.body:
            self.visit(item)

    def _check_decorators(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            text = ast.unparse(decorator)
            allowed = ("staticmethod", "property", "torch.no_grad()", "torch.inference_mode()", "dataclass")
            if text not in allowed and not text.startswith("dataclass("):
                self._add("forbidden_decorator", decorator, f"@{text}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._check_decorators(node)
        if node.name.startswith("__") and node.name != "__init__":
            self._add("forbidden_method", node, f"def {node.name}")
        outer = (self._phase, self._tensors, self._callable)
        self._phase = {"__init__": _CONSTRUCTION, "load_state_dict": _LOADING}.get(node.name, _RUNNING)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        self._tensors = {item.arg for item in arguments if item.arg != "self" and not _is_scalar(item.annotation)}
        self._callable = set(self._callable)
        self._spread_tensors(node)
        for part in [*node.args.defaults, *(item for item in node.args.kw_defaults if item), *node.body]:
            self.visit(part)
        self._phase, self._tensors, self._callable = outer

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._add("forbidden_method", node, f"async def {node.name}")

    def _spread_tensors(self, function: ast.FunctionDef) -> None:
        """Collects the names that hold tensors: those assigned from a tensor, a view, or a call of the extension."""
        for _ in range(3):
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and self._is_tensor(node.value):
                    for target in node.targets:
                        self._tensors |= {item.id for item in ast.walk(target) if isinstance(item, ast.Name)}
                if isinstance(node, ast.For) and _root_attribute(node.iter) in self._local_modules:
                    self._callable |= {item.id for item in ast.walk(node.target) if isinstance(item, ast.Name)}

    def _is_tensor(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._tensors
        if isinstance(node, ast.Call):
            function = node.func
            if not isinstance(function, ast.Attribute):
                return isinstance(function, ast.Name) and function.id in self._callable
            if _root(function) in self._extension | self._torch:
                return True
            return function.attr not in self._lists["shapes"] and self._is_tensor(function.value)
        if isinstance(node, ast.Subscript):
            return self._is_tensor(node.value)
        if isinstance(node, ast.Attribute):
            return node.attr in ("T", "mT", "H", "data", "weight", "running_mean", "running_var") or (
                node.attr not in self._lists["read only"] and self._is_tensor(node.value)
            )
        if isinstance(node, ast.BinOp):
            return self._is_tensor(node.left) or self._is_tensor(node.right)
        if isinstance(node, ast.IfExp):
            return self._is_tensor(node.body) or self._is_tensor(node.orelse)
        return False

    def _is_nn(self, node: ast.expr, name: str) -> bool:
        text = ast.unparse(node)
        return text in {f"{alias}.{name}" for alias in self._nn} | {f"{alias}.nn.{name}" for alias in self._torch}

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._check_operator(node, [node.left, node.right], isinstance(node.op, ast.MatMult))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._check_operator(node, [node.target, node.value], isinstance(node.op, ast.MatMult))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if not isinstance(node.op, ast.Not):
            self._check_operator(node, [node.operand], False)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if not any(isinstance(operator, ast.Is | ast.IsNot | ast.In | ast.NotIn) for operator in node.ops):
            self._check_operator(node, [node.left, *node.comparators], False)
        self.generic_visit(node)

    def _check_operator(self, node: ast.AST, operands: list[ast.expr], matmul: bool) -> None:
        if self._phase == _CONSTRUCTION:
            return
        if matmul or any(self._is_tensor(operand) for operand in operands):
            hint = "" if matmul else " (a parameter that is a number needs its annotation: int or float)"
            self._add("torch_compute", node, f"tensor arithmetic: {ast.unparse(node)[:80]}{hint}")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._check_target(node)
        self.generic_visit(node)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        """Checks patterns such as `case Callable(__globals__=names)`, which read attributes that no other check
        sees."""
        for name in node.kwd_attrs:
            self._add("forbidden_name", node, f"case {ast.unparse(node.cls)}({name}=…)")
        self.generic_visit(node)

    def _check_target(self, node: ast.Attribute | ast.Subscript) -> None:
        """Checks a target that is assigned to, deleted, or bound by a loop."""
        if _root(node) in self._imported:
            self._add("patched_module", node, f"changes {ast.unparse(node)}")
        elif isinstance(node, ast.Subscript) and self._phase != _CONSTRUCTION and self._is_tensor(node.value):
            self._add("torch_compute", node, f"writes into a tensor: {ast.unparse(node)}")

    def visit_Name(self, node: ast.Name) -> None:
        forbidden = node.id.startswith("__") and node.id != "__name__"
        if forbidden or node.id in self._lists["names forbidden"]:
            self._add("forbidden_name", node, node.id)
        elif node.id in self._modules and node not in self._before_a_dot:
            self._add("forbidden_name", node, f"{node.id}: a module may only stand before a dot")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        root = _root(node)
        if not isinstance(node.ctx, ast.Load):
            self._check_target(node)
        if isinstance(node.value, ast.Name):
            self._before_a_dot.add(node.value)
        if (node.attr.startswith("__") and node.attr != "__init__") or node.attr in self._lists["frame names"]:
            self._add("forbidden_name", node, ast.unparse(node))
        elif root in self._torch or root in self._nn:
            self._check_torch(node)
            return
        elif root in self._modules:
            self._check_module(node, root)
        elif self._phase == _RUNNING and self._is_compute(node, root):
            self._add("torch_compute", node, ast.unparse(node))
        if isinstance(node.value, ast.Attribute | ast.Subscript):
            self._passed_through.add(_owner(node.value))
        self.generic_visit(node)

    def _check_module(self, node: ast.Attribute, alias: str) -> None:
        """Checks one name taken from a module."""
        module = self._modules[alias] + ast.unparse(node.value).removeprefix(alias)
        if node.attr not in self._lists.get(f"names of {module}", {node.attr}):
            self._add("forbidden_name", node, ast.unparse(node))

    def _is_compute(self, node: ast.Attribute, root: str) -> bool:
        """Whether a name is a tensor's method that computes. One that is only a module's is none: `norm` in `self.norm`
        or `self.block.norm.weight`."""
        if node.attr not in self._lists["tensor compute"] or root in self._extension | self._math:
            return False
        return not (root == "self" and (isinstance(node.value, ast.Name) or node in self._passed_through))

    def _check_torch(self, node: ast.Attribute) -> None:
        """Checks a dotted name that begins at torch or nn."""
        parts = ast.unparse(node).split(".")
        names = parts[1:] if parts[0] in self._torch else ["nn", *parts[1:]]
        first = names[0]
        if first == "nn":
            second = names[1] if len(names) > 1 else ""
            container = second[:1].isupper() and self._phase == _CONSTRUCTION
            allowed = second in self._lists["nn names"] or container
            allowed = allowed and (len(names) < 3 or (len(names) == 3 and names[2] in self._lists["methods"]))
            if second == "init" and self._phase == _CONSTRUCTION:
                allowed = len(names) == 3 and names[2] in self._lists["names of torch.nn.init"]
        else:
            allowed = first in self._lists["torch names"] or (
                self._phase == _CONSTRUCTION and first in self._lists["torch names at construction"]
            )
            allowed = allowed and (len(names) == 1 or first in ("finfo", "iinfo"))
        if not allowed:
            self._add("torch_compute", node, f"{'.'.join(parts)} may not be used {_WHEN[self._phase]}")

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Name):
            self._check_name_call(node, function.id)
        elif isinstance(function, ast.Attribute):
            self._check_method_call(node, function)
        elif not (isinstance(function, ast.Subscript) and _root_attribute(function) in self._local_modules):
            self._add("hidden_call", node, f"{ast.unparse(function)[:60]}(…): call things by their names")
        self.generic_visit(node)

    def _check_name_call(self, node: ast.Call, name: str) -> None:
        known = self._lists["builtins"] | self._defined | self._callable
        if name not in known | {"Parameter", "Buffer", "field", "dataclass"}:
            self._add("hidden_call", node, f"{name}(…) is neither defined here nor allowed")
        computes = name in ("sum", "max", "min", "abs", "round", "divmod") and self._phase != _CONSTRUCTION
        if computes and any(self._is_tensor(argument) for argument in node.args):
            self._add("torch_compute", node, f"{name}(…) of a tensor")

    def _check_method_call(self, node: ast.Call, function: ast.Attribute) -> None:
        root = _root(function)
        if root in self._extension | self._math | self._torch | self._nn:
            return
        if self._modules.get(root) == "torch.nn.init" and self._phase == _CONSTRUCTION:
            return
        own = isinstance(function.value, ast.Name) and function.value.id == "self"
        if own and function.attr in self._methods | self._local_modules:
            return
        allowed = set(self._lists["methods"])
        if self._phase == _CONSTRUCTION:
            allowed |= self._lists["methods at construction"]
        elif self._phase == _LOADING:
            allowed |= self._lists["methods at loading"]
        if function.attr not in allowed:
            self._add("torch_compute", node, f"{ast.unparse(function)[:60]}(…) may not be used {_WHEN[self._phase]}")


_WHEN = {_CONSTRUCTION: "here", _LOADING: "while weights are loaded", _RUNNING: "in forward"}


def _root(node: ast.expr) -> str:
    """Returns `torch` for `torch.nn.Linear`, and "" where the expression doesn't begin with a name."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _owner(node: ast.expr) -> ast.expr:
    """Returns the attribute of which a part is taken: `self.layers` for `self.layers[0]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _root_attribute(node: ast.expr) -> str:
    """Returns `blocks` for `self.blocks`, `self.blocks[0]`, `self.blocks.values()` and `enumerate(self.blocks)`."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
            return part.attr
    return ""


def _is_scalar(annotation: ast.expr | None) -> bool:
    return annotation is not None and any(
        isinstance(part, ast.Name) and part.id in _SCALARS for part in ast.walk(annotation)
    )
