"""Fills text templates. They are files beside the modules that use them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


def filled(template: Path, **values: Any) -> str:
    """Returns the text of a template with these values. In files `*.html.j2`, `*.svg.j2` and `*.xml.j2` they are
    escaped. A line that holds only a block tag leaves no line. A name without a value is an error."""
    environment = _environment(template.parent, template.name.endswith((".html.j2", ".svg.j2", ".xml.j2")))
    return environment.get_template(template.name).render(values)


@cache
def _environment(folder: Path, escapes: bool) -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), undefined=jinja2.StrictUndefined, autoescape=escapes, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
