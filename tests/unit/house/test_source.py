"""Structure of the source: import circles, sizes of modules, functions and folders, names, docstrings."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter, defaultdict

import grimp
from sources import ROOT, functions, modules, report

MOST_LINES, MOST_FUNCTION_LINES, MOST_MODULES = 400, 60, 20


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and under TYPE_CHECKING count too."""
    graph = grimp.build_graph("cuda_agent", cache_dir=None)
    reached = {module: graph.find_upstream_modules(module) for module in graph.modules}
    circles = {tuple(sorted({b for b in reached[a] if a in reached[b]} | {a})) for a in reached}
    report(
        (_file(circle[0]), f"imports itself through {', '.join(circle[1:])}: move what they share to a module below")
        for circle in sorted(circles)
        if len(circle) > 1
    )


def _file(module: str) -> str:
    return "/".join(module.split(".")[1:]) + ".py"


def test_modules_are_short() -> None:
    lines = {module.path: module.text.count("\n") for module in modules()}
    report(((f"{path}:1", f"{n} lines, at most {MOST_LINES}: split it") for path, n in lines.items() if n > MOST_LINES))


def test_functions_are_short() -> None:
    found = [
        (f"{module.path}:{node.lineno}", f"{node.name} has {lines} lines, at most {MOST_FUNCTION_LINES}: split it")
        for module in modules()
        for node in functions(module.tree)
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_FUNCTION_LINES
    ]
    report(found)


def test_folders_have_few_modules() -> None:
    """`__init__` doesn't count."""
    parts = [module.path.rpartition("/") for module in modules()]
    sizes = Counter(folder for folder, _, name in parts if name != "__init__.py")
    report(
        (f"{folder}/", f"{count} modules, at most {MOST_MODULES}: group them in folders")
        for folder, count in sizes.items()
        if count > MOST_MODULES
    )


def test_no_docstring_begins_with_of_or_as() -> None:
    found = [
        (f"{module.path}:{getattr(node, 'lineno', 1)}", f"docstring '{text[:30]}...': write a sentence with a verb")
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node) or "").startswith(("Of ", "As "))
    ]
    report(found)


def test_prose_calls_nothing_a_person() -> None:
    """A process, a task or a file is "it", in comments, docstrings and messages."""
    report(
        (f"{module.path}:{number}", f"{found[0]!r}: name the process, the task or the file")
        for module in modules()
        for number, line in enumerate(module.text.splitlines(), 1)
        if (found := re.search(r"\b(who|whoever|nobody|somebody|anybody|everybody)\b", line))
    )


def test_packages_share_no_name_of_a_public_class() -> None:
    places: dict[str, dict[str, str]] = defaultdict(dict)
    for module in modules():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name][module.path.partition("/")[0]] = f"{module.path}:{node.lineno}"
    found = [
        (place, f"class {name} is also in {', '.join(sorted(set(shared.values()) - {place}))}: rename one")
        for name, shared in places.items()
        for place in shared.values()
        if len(shared) > 1
    ]
    report(found)


def test_git_knows_every_module_and_every_folder_is_a_package() -> None:
    """What .gitignore hides is missing from a clone."""
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True)
    known = {name.removeprefix("src/cuda_agent/") for name in listed.stdout.splitlines()}
    folders = {module.path.rpartition("/")[0] for module in modules()}
    wanted = {module.path for module in modules()} | {f"{folder}/__init__.py".lstrip("/") for folder in folders}
    report((path, "git has no such file: add it, or correct .gitignore") for path in sorted(wanted - known))
