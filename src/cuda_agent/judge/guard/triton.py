"""The rule for a comparison: kernels in Triton's language, which are no CUDA extension and are judged for comparison.

The rule `triton` relaxes those of `python_tree` by exactly this: imports of Triton, functions under `@triton.jit`
(Triton compiles their text, Python never runs it), and launching them. All else holds: no torch compute, no other
module.
"""

import ast

from cuda_agent.core.records import Candidate, Violation
from cuda_agent.judge.guard.python_tree import ModuleChecker

MODEL_FILE = "model_new.py"
_MODULES = {"triton", "triton.language"}
_FROM_TRITON = {"language", "cdiv", "next_power_of_2", "jit", "autotune", "heuristics", "Config"}
_CALLED = {"cdiv", "next_power_of_2", "Config", "jit", "autotune", "heuristics"}


def is_comparison(candidate: Candidate) -> bool:
    """Whether a candidate consists of Triton kernels only: it has no file to compile, and a module that imports
    Triton."""
    text = candidate.files.get(MODEL_FILE)
    if text is None or len(candidate.files) > 1:
        return False
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return any(name.partition(".")[0] == "triton" for name in imported)


def check_comparison(candidate: Candidate) -> tuple[tuple[Violation, ...], frozenset[str]]:
    """Returns the broken rules and the names of the candidate's kernels."""
    checker = _TritonChecker(MODEL_FILE)
    return tuple(checker.check(candidate.files[MODEL_FILE])), frozenset(checker.kernels)


class _TritonChecker(ModuleChecker):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.kernels: set[str] = set()
        self._triton = {"triton"}

    def collect(self, tree: ast.Module) -> None:
        super().collect(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._triton |= {alias.asname for alias in node.names if alias.name == "triton" and alias.asname}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and any(self._is_jit(item) for item in node.decorator_list):
                self.kernels.add(node.name)

    def _is_jit(self, node: ast.expr) -> bool:
        called = node.func if isinstance(node, ast.Call) else node
        return self._name_in_triton(called) == "jit"

    def _name_in_triton(self, node: ast.expr) -> str:
        """Returns `cdiv` for `triton.cdiv` or for a `cdiv` that was imported from Triton, else ""."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self._triton:
            return node.attr
        return node.id if isinstance(node, ast.Name) and node.id in self._from_triton else ""

    @property
    def _from_triton(self) -> set[str]:
        return self._imported & (_FROM_TRITON - {"language"})

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name not in self._lists["modules"] | _MODULES:
                self._add("forbidden_import", node, f"import {alias.name}")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module == "triton" and not node.level:
            for alias in node.names:
                if alias.name not in _FROM_TRITON or (alias.asname and alias.name != "language"):
                    self._add("forbidden_import", node, f"from triton import {alias.name}")
            return
        super().visit_ImportFrom(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name not in self.kernels:
            super().visit_FunctionDef(node)
            return
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if self._name_in_triton(called) not in ("jit", "autotune", "heuristics"):
                self._add("forbidden_decorator", decorator, f"@{ast.unparse(decorator)}")
        # What Python runs of it when the file is loaded.
        for part in [*node.decorator_list, *node.args.defaults, *(item for item in node.args.kw_defaults if item)]:
            self.visit(part)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        launched = function.value if isinstance(function, ast.Subscript) else None
        launches = isinstance(launched, ast.Name) and launched.id in self.kernels
        if launches or self._name_in_triton(function) in _CALLED:
            self.generic_visit(node)
        else:
            super().visit_Call(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id not in self._from_triton:
            super().visit_Name(node)
