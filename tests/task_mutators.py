"""Ways to write a task otherwise without changing what it computes (numbers excepted): renaming, another order of
statements, other comments, other numbers, modules against functions, inlining."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence

_KEPT = {"Model", "forward", "get_inputs", "get_init_inputs", "self", "super", "__init__"}

#: modules without weights, and the functions for them.
STATELESS = {
    "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "ELU": "elu", "LeakyReLU": "leaky_relu", "Tanh": "tanh",
    "Sigmoid": "sigmoid", "MaxPool2d": "max_pool2d", "AvgPool3d": "avg_pool3d", "PixelShuffle": "pixel_shuffle",
    "Dropout": "dropout", "Softplus": "softplus", "Softmax": "softmax",
}  # fmt: skip
#: modules with a weight and a bias.
WEIGHTED = {
    "Linear": "linear", "Conv1d": "conv1d", "Conv2d": "conv2d", "Conv3d": "conv3d", "LayerNorm": "layer_norm",
    "GroupNorm": "group_norm", "ConvTranspose2d": "conv_transpose2d",
}  # fmt: skip
_BACK = {function: module for module, function in STATELESS.items()}


def renamed(source: str) -> str:
    """Every name of the author's own is another."""
    tree = ast.parse(source)
    own = {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.FunctionDef):
            own.add(node.name)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "self.register_buffer":
            assert isinstance(node.args[0], ast.Constant)
            own.add(str(node.args[0].value))
    names = {name: f"u{place}_{name[::-1]}" for place, name in enumerate(sorted(own - _KEPT))}

    class Renamer(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            node.id = {"F": "fun"}.get(node.id, names.get(node.id, node.id))
            return node

        def visit_arg(self, node: ast.arg) -> ast.AST:
            node.arg = names.get(node.arg, node.arg)
            return node

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            node.name = names.get(node.name, node.name)
            return self.generic_visit(node)

        def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                node.attr = names.get(node.attr, node.attr)
            return node

        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node.func, ast.Attribute) and node.func.attr == "register_buffer":
                node.args[0] = ast.Constant(names[str(node.args[0].value)])
            return node

        def visit_alias(self, node: ast.alias) -> ast.AST:
            node.asname = "fun" if node.asname == "F" else node.asname
            return node

    return ast.unparse(Renamer().visit(tree))


def reordered(source: str) -> str:
    """Statements that don't need each other change places: in functions, in the class and in the file."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            head = node.body[:1] if "super" in ast.unparse(node.body[0]) else []
            node.body = head + _turned(node.body[len(head) :])
        elif isinstance(node, ast.ClassDef):
            node.body = [s for s in node.body if isinstance(s, ast.FunctionDef)][::-1]
        elif isinstance(node, ast.Call):
            node.keywords = node.keywords[::-1]
    functions = [s for s in tree.body if isinstance(s, ast.FunctionDef)]
    rest = [s for s in tree.body if not isinstance(s, ast.FunctionDef)]
    tree.body = [*rest[:-1], *functions[::-1], rest[-1]]
    return ast.unparse(tree)


def _turned(body: list[ast.stmt]) -> list[ast.stmt]:
    """Each statement as early as what it reads and writes allows, the last that may come first."""
    placed: list[ast.stmt] = []
    waiting = list(body)
    while waiting:
        for place in reversed(range(len(waiting))):
            reads, writes = _uses(waiting[place])
            before = [_uses(other) for other in waiting[:place]]
            stuck = isinstance(waiting[place], ast.Return) and place > 0
            if not stuck and all(not (w & (reads | writes)) and not (r & writes) for r, w in before):
                placed.append(waiting.pop(place))
                break
    return placed


def _uses(statement: ast.stmt) -> tuple[set[str], set[str]]:
    names = [n for n in ast.walk(statement) if isinstance(n, ast.Name | ast.Attribute)]
    writes = {ast.unparse(n) for n in names if isinstance(n.ctx, ast.Store)}
    return {ast.unparse(n) for n in names if isinstance(n.ctx, ast.Load)}, writes


def recommented(source: str) -> str:
    """Comments and docstrings are gone, others are there."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant):
                node.body.pop(0)
            if isinstance(node, ast.FunctionDef):
                node.body.insert(0, ast.Expr(ast.Constant("Something else is said here.")))
    return "# another hand\n" + ast.unparse(tree).replace("\n    def ", "\n\n    # note\n    def ")


def renumbered(source: str) -> str:
    """Other numbers and flags everywhere, sizes first; places in tuples and dimensions stay."""

    class Renumber(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.AST:
            if isinstance(node.value, bool):
                return ast.Constant(not node.value)
            if isinstance(node.value, float):
                return ast.Constant(node.value * 1.37)
            if isinstance(node.value, int) and node.value > 1:
                return ast.Constant(node.value + 3)
            return node

        def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
            node.value = self.visit(node.value)
            return node

    return ast.unparse(ast.fix_missing_locations(Renumber().visit(ast.parse(source))))


class _Layers(ast.NodeTransformer):
    """Of modules in `__init__`, functions in `forward`."""

    def __init__(self) -> None:
        self.functions: dict[str, tuple[str, bool, list[ast.expr], list[ast.keyword]]] = {}
        self.chains: dict[str, list[str]] = {}

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.AST]:
        target, value = node.targets[0], node.value
        word = _module(value)
        if word is None or not isinstance(target, ast.Attribute) or not isinstance(value, ast.Call):
            return self.generic_visit(node)
        if word == "Sequential":
            self.chains[target.attr] = [f"{target.attr}_{place}" for place in range(len(value.args))]
            parts: list[ast.AST] = []
            for name, layer in zip(self.chains[target.attr], value.args, strict=True):
                made = ast.Assign([ast.Attribute(target.value, name, ast.Store())], layer)
                done = self.visit_Assign(made)
                parts += done if isinstance(done, list) else [done]
            return parts
        if word in STATELESS:
            self.functions[target.attr] = (STATELESS[word], False, value.args, value.keywords)
            return []
        if word in WEIGHTED:
            self.functions[target.attr] = (WEIGHTED[word], True, value.args, value.keywords)
            sizes = ", ".join(map(ast.unparse, value.args[1:2] if word == "GroupNorm" else value.args[:2][::-1]))
            bias = ast.unparse(value.args[min(1, len(value.args) - 1)])
            text = (
                f"self.{target.attr}_weight = nn.Parameter(torch.randn({sizes}))\n"
                f"self.{target.attr}_bias = nn.Parameter(torch.zeros({bias}))"
            )
            if word == "GroupNorm":
                text += f"\nself.{target.attr}_groups = {ast.unparse(value.args[0])}"
            return list(ast.parse(text).body)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) and _is_self(node.func.value) else None
        if name in self.chains:
            result: ast.expr = node.args[0]
            for part in self.chains[name]:
                made = ast.Call(ast.Attribute(ast.Name("self", ast.Load()), part, ast.Load()), [result], [])
                done = self.visit_Call(made)
                assert isinstance(done, ast.expr)
                result = done
            return result
        if name in self.functions:
            function, weighted, args, keywords = self.functions[name]
            bare = any(k.arg == "bias" and ast.unparse(k.value) == "False" for k in keywords)
            parts = [] if not weighted else ["weight"] if bare else ["weight", "bias"]
            extra = [ast.parse(f"self.{name}_{part}", mode="eval").body for part in parts]
            if function in ("layer_norm", "group_norm"):
                before = f"self.{name}_weight.shape" if function == "layer_norm" else f"self.{name}_groups"
                extra.insert(0, ast.parse(before, mode="eval").body)
            given = [] if weighted or function == "dropout" else args
            kept = [k for k in keywords if k.arg not in ("bias", "inplace")]
            if function == "dropout":
                kept = [ast.keyword("training", ast.parse("self.training", mode="eval").body)]
            return ast.Call(ast.parse(f"F.{function}", mode="eval").body, [*node.args, *extra, *given], kept)
        return node


def _module(value: ast.expr) -> str | None:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and ast.unparse(value.func.value) == "nn":
        return value.func.attr
    return None


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def functional(source: str) -> str:
    """Layers are functions with weights of the model's own."""
    tree = ast.parse(source)
    changer = _Layers()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            # __init__ first, wherever it stands.
            node.body.sort(key=lambda s: getattr(s, "name", "") != "__init__")
            node.body = [changer.visit(statement) for statement in node.body]
    return _with_functional(ast.unparse(ast.fix_missing_locations(tree)))


def spelled_as_methods(source: str) -> str:
    """`torch.f(x)` is `x.f()`, operators are functions, functions of `F` without weights are modules."""

    class Speller(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            whole = ast.unparse(node.func)
            short = whole.removeprefix("F.")
            if whole.startswith("F.") and short in _BACK and len(node.args) == 1:
                layer = ast.Call(ast.parse(f"nn.{_BACK[short]}", mode="eval").body, [], node.keywords)
                return ast.Call(layer, node.args, [])
            methods = ("exp", "log", "sqrt", "tanh", "sigmoid", "cumsum", "cumprod", "softmax", "log_softmax", "sin")
            if whole.removeprefix("torch.") in methods and whole.startswith("torch."):
                return ast.Call(ast.Attribute(node.args[0], node.func.attr, ast.Load()), node.args[1:], node.keywords)
            return node

        def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
            self.generic_visit(node)
            names = {ast.Add: "add", ast.Mult: "mul", ast.Sub: "sub", ast.MatMult: "matmul"}
            if type(node.op) not in names:
                return node
            function = ast.parse(f"torch.{names[type(node.op)]}", mode="eval").body
            return ast.Call(function, [node.left, node.right], [])

    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            node.body = [Speller().visit(statement) for statement in node.body]
    return _with_functional(ast.unparse(ast.fix_missing_locations(tree)))


def inlined(source: str) -> str:
    """Locals of `forward` are put in where they are used."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            node.body = _put_in(node.body)
    return ast.unparse(ast.fix_missing_locations(tree))


def _put_in(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    known: dict[str, ast.expr] = {}

    class Filler(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            found = known.get(node.id) if isinstance(node.ctx, ast.Load) else None
            return copy.deepcopy(found) if found is not None else node

    if any(isinstance(statement, ast.For | ast.If) for statement in body):
        return list(body)
    left: list[ast.stmt] = []
    for statement in body:
        filled = Filler().visit(statement)
        if isinstance(filled, ast.Assign) and isinstance(filled.targets[0], ast.Name):
            known[filled.targets[0].id] = filled.value
        else:
            left.append(filled)
    return left


def outlined(source: str) -> str:
    """What `forward` did is a helper's, in a submodule of its own."""
    tree = ast.parse(source)
    index = next(i for i, s in enumerate(tree.body) if isinstance(s, ast.ClassDef) and s.name == "Model")
    inner = copy.deepcopy(tree.body[index])
    assert isinstance(inner, ast.ClassDef)
    inner.name = "Body"
    text = """
class Model(nn.Module):
    def __init__(self, *settings):
        super().__init__()
        self.body = Body(*settings)

    def forward(self, *tensors):
        return self._run(tensors)

    def _run(self, tensors):
        return self.body(*tensors)
"""
    tree.body[index : index + 1] = [inner, *ast.parse(text).body]
    return ast.unparse(ast.fix_missing_locations(tree))


def _with_functional(source: str) -> str:
    line = "import torch.nn.functional as F\n"
    return source if line in source else source.replace("import torch\n", f"import torch\n{line}", 1)


MUTATORS: dict[str, Callable[[str], str]] = {
    f.__name__: f
    for f in (
        renamed, reordered, recommented, renumbered, functional, spelled_as_methods, inlined, outlined,
    )
}  # fmt: skip


def everything(source: str) -> str:
    """All of them, one after the other (what is inlined has no locals that a helper could take)."""
    for change in (functional, spelled_as_methods, inlined, reordered, renumbered, recommented, renamed):
        source = change(source)
    return source
