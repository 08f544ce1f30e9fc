"""Reads the files beside a module that uses them: tables and lists of names in YAML, and templates of texts. Names the
command that runs a module of this package.
"""

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

#: the folder from which this package was imported.
PACKAGES = Path(__file__).resolve().parents[2]


def program(module: str, *words: str) -> list[str]:
    """Returns the command that calls `main` of a module of this package, from the folder that it was imported from
    here. -P: nothing is imported from the working directory."""
    text = "import sys; own = sys.argv.pop(); own in sys.path or sys.path.insert(0, own); "
    return [sys.executable, "-P", "-c", f"{text}from {module} import main; main()", *words, str(PACKAGES)]


@cache
def tables(module: str) -> dict[Any, Any]:
    """Returns the tables of a module, given as its `__file__`, by their names."""
    import yaml

    # The C library's parser takes a sixth of the time, but isn't in every build.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[Any, Any] = yaml.load(Path(module).with_suffix(".yaml").read_text(), loader)
    return found


def words(module: str, name: str) -> list[str]:
    """Returns the blank-separated words of one of a module's tables, in their order."""
    text: str = tables(module)[name]
    return text.split()


@cache
def word_lists(module: str) -> Mapping[str, frozenset[str]]:
    """Returns the tables of a module that are lists: NAME -> the blank-separated words of its text."""
    return {name: frozenset(text.split()) for name, text in tables(module).items() if isinstance(text, str)}


def inverted(groups: Mapping[str, str]) -> dict[str, str]:
    """Returns NAME -> GROUP for groups with blank-separated names."""
    return {name: group for group, names in groups.items() for name in names.split()}


def filled(template: Path, **values: Any) -> str:
    """Returns the text of a template with these values. In files `*.html.j2`, `*.svg.j2` and `*.xml.j2` they are
    escaped. A line that holds only a block tag leaves no line. A name without a value is an error."""
    environment = _environment(template.parent, template.name.endswith((".html.j2", ".svg.j2", ".xml.j2")))
    return environment.get_template(template.name).render(values)


@cache
def _environment(folder: Path, escapes: bool) -> "jinja2.Environment":
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), undefined=jinja2.StrictUndefined, autoescape=escapes, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
