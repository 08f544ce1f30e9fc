"""Provides the names that a task's text needs: by imports where they are installed, otherwise by their source.

A definition in the user's code is copied together with every module-level statement that it refers to, in all of the
user's modules.
"""

import ast
import importlib
import importlib.util
import inspect
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

RESERVED = ("Model", "get_inputs", "get_init_inputs")


class Inexpressible(Exception):
    """Says why something can't be written as a task."""


@dataclass(frozen=True)
class _File:
    """A module of the user's code: its statements, and the statements that bind each name."""

    package: str
    text: str
    body: tuple[ast.stmt, ...]
    bindings: dict[str, tuple[int, ...]]


@dataclass
class Sources:
    """The imports and definitions at the beginning of a task's file. `own` are the names of modules of the user's
    code."""

    own: frozenset[str]
    _imports: dict[str, None] = field(default_factory=dict)
    #: name in the task's file -> its meaning.
    _names: dict[str, str] = field(default_factory=lambda: dict.fromkeys(RESERVED, "the task's own"))
    _files: dict[str, _File] = field(default_factory=dict)
    _order: list[str] = field(default_factory=list)
    _taken: dict[str, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.need("import torch")
        self.need("from torch import nn")

    def need(self, line: str) -> None:
        """Adds an import statement. Raises Inexpressible where its name has another meaning already."""
        statement = ast.parse(line).body[0]
        assert isinstance(statement, (ast.Import, ast.ImportFrom))
        known = False
        for alias in statement.names:
            top = alias.name.partition(".")[0]
            if isinstance(statement, ast.ImportFrom):
                known = self._bind(alias.asname or alias.name, f"{statement.module}.{alias.name}")
            elif alias.asname:
                known = self._bind(alias.asname, alias.name)
            else:
                # `import torch.fft` also loads what `import torch` doesn't.
                known = self._bind(top, top) and top == alias.name
        if not known:
            self._imports[line] = None

    def reference(self, value: Any) -> str:
        """Returns text that refers to this class or function. Raises Inexpressible."""
        name = getattr(value, "__qualname__", "")
        module = getattr(value, "__module__", None) or ""
        label = f"{module}.{name}" if name else type(value).__name__
        if getattr(nn, name, None) is value:
            return f"nn.{name}"
        for space in ("torch", "torch.nn.functional"):
            if getattr(sys.modules[space], name, None) is value:
                self.need(f"import {space}")
                return f"{space}.{name}"
        if "<locals>" in name or "<lambda>" in name:
            raise Inexpressible(f"{label} is defined inside a function")
        if getattr(sys.modules.get("builtins"), name, None) is value:
            return name
        if not _finds(module, name, value):
            raise Inexpressible(f"{label} can't be imported by its name")
        top = name.partition(".")[0]
        if module in self.own:
            self._define(module, top)
        else:
            self.need(f"from {module} import {top}")
        return name

    def imports(self) -> str:
        """Returns the import statements, those from `__future__` first."""
        modules = {line: line.split()[1] for line in self._imports}
        return "\n".join(sorted(modules, key=lambda line: (modules[line] != "__future__", modules[line])))

    def definitions(self) -> str:
        """Returns the copied statements in their order, with imported modules before those that import them."""
        taken = [(self._files[name], index) for name in self._order for index in sorted(self._taken[name])]
        return "\n\n\n".join(_text(file, file.body[index]) for file, index in taken)

    def _bind(self, name: str, meaning: str) -> bool:
        """Binds a name. Returns whether it was bound before. Raises Inexpressible where it has another meaning
        already."""
        known = name in self._names
        if self._names.setdefault(name, meaning) != meaning:
            raise Inexpressible(f"two things in its source are called {name}")
        return known

    def _define(self, module: str, name: str) -> None:
        file = self._file(module)
        indices = file.bindings.get(name)
        if indices is None:
            raise Inexpressible(f"{module} binds {name} in a way that its text doesn't show")
        taken = self._taken.setdefault(module, set())
        for index in indices:
            statement = file.body[index]
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self._import(file, statement, name)
                continue
            self._bind(name, f"{module}:{name}")
            if index in taken:
                continue
            taken.add(index)
            for needed in sorted(_loaded(statement)):
                if needed in file.bindings and needed != name:
                    self._define(module, needed)
        # The module comes after those that it imports.
        if module not in self._order and taken:
            self._order.append(module)

    def _import(self, file: _File, statement: ast.Import | ast.ImportFrom, name: str) -> None:
        """Adds the alias of an import that binds a name, or the definition where the imported module is the user's."""
        for alias in statement.names:
            if (alias.asname or alias.name.partition(".")[0]) != name:
                continue
            suffix = f" as {alias.asname}" if alias.asname else ""
            if isinstance(statement, ast.Import):
                if alias.name.partition(".")[0] in {own.partition(".")[0] for own in self.own}:
                    raise Inexpressible(f"its source imports the module {alias.name} as a whole; import names from it")
                self.need(f"import {alias.name}{suffix}")
                continue
            origin = importlib.util.resolve_name("." * statement.level + (statement.module or ""), file.package)
            if origin not in self.own:
                if f"{origin}.{alias.name}" in self.own:
                    raise Inexpressible(f"its source imports the module {alias.name} as a whole; import names from it")
                self.need(f"from {origin} import {alias.name}{suffix}")
                continue
            self._define(origin, alias.name)
            if alias.asname and alias.asname != alias.name:
                raise Inexpressible(
                    f"its source imports one of its own names under another ({alias.name} as {alias.asname})"
                )

    def _file(self, module: str) -> _File:
        if module not in self._files:
            self._files[module] = _read(sys.modules[module])
            if "from __future__ import annotations" in self._files[module].text:
                self._imports["from __future__ import annotations"] = None
        return self._files[module]


def _finds(module: str, name: str, value: Any) -> bool:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return False
    return found is value


def _read(module: types.ModuleType) -> _File:
    try:
        text = inspect.getsource(module)
    except (OSError, TypeError):
        raise Inexpressible(f"the source of {module.__name__} can't be read") from None
    body = tuple(ast.parse(text).body)
    bindings: dict[str, tuple[int, ...]] = {}
    for index, statement in enumerate(body):
        for name in _bound(statement):
            bindings[name] = (*bindings.get(name, ()), index)
    return _File(getattr(module, "__package__", None) or "", text, body, bindings)


def _bound(statement: ast.stmt) -> set[str]:
    """Returns the names that a module-level statement binds; none for `if __name__ == "__main__"`."""
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names} - {"annotations"}
    if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
        return set()
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return names


def _loaded(statement: ast.stmt) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            names.add(node.id)
        for field_name in ("annotation", "returns"):
            quoted = getattr(node, field_name, None)
            if isinstance(quoted, ast.Constant) and isinstance(quoted.value, str) and quoted.value.isidentifier():
                names.add(quoted.value)
    return names


def _text(file: _File, statement: ast.stmt) -> str:
    lines = file.text.splitlines()
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(node.lineno for node in decorators)])
    return "\n".join(lines[first - 1 : statement.end_lineno])


def own_modules(folders: tuple[str, ...]) -> frozenset[str]:
    """Returns the names of loaded modules that aren't installed: the task's module, and those in the user's folders."""
    found = set()
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not path:
            continue
        installed = "site-packages" in Path(path).parts or "dist-packages" in Path(path).parts
        in_folder = any(Path(path).is_relative_to(folder) for folder in folders)
        if path.startswith("/task/") or (in_folder and not installed):
            found.add(name)
    return frozenset(found)
