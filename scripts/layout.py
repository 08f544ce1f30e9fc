"""Renew the list of files in docs/architecture.md from the first lines of the modules' docstrings."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "cuda_agent"
PAGE = ROOT / "docs" / "architecture.md"
LONGEST = 110
BEGIN, END = "<!-- layout: begin -->", "<!-- layout: end -->"


def summary(path: Path) -> str:
    """First sentence of a module's docstring, on one line."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=\.)\s", text)[0].rstrip(".:")
    return sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST].rpartition(' ')[0].rstrip(',;:')} …"


def layout() -> str:
    """A tree: folders with what their `__init__` says, then their modules; files of other kinds by name only."""
    lines = []
    for folder in sorted(
        {path.parent for path in SOURCE.rglob("*.py")}, key=lambda path: path.relative_to(SOURCE).parts
    ):
        depth = len(folder.relative_to(SOURCE).parts)
        if "files" in folder.parts:  # copied into every workspace, not part of the package's code
            continue
        init = folder / "__init__.py"
        lines.append(f"{'  ' * depth}{folder.name}/  {summary(init) if init.exists() else ''}".rstrip())
        for path in sorted(folder.iterdir()):
            if path.suffix == ".py" and path != init:
                lines.append(f"{'  ' * (depth + 1)}{path.name:<20} {summary(path)}")
            elif path.name == "files":
                lines.append(f"{'  ' * (depth + 1)}files/  the fixed files of every workspace")
            elif path.is_file() and path.suffix not in (".py", ".pyc"):
                lines.append(f"{'  ' * (depth + 1)}{path.name}")
    return "\n".join(lines)


def main() -> int:
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    renewed = f"{before}{BEGIN}\n```\n{layout()}\n```\n{END}{after}"
    if "--check" in sys.argv:
        print("up to date" if renewed == text else "docs/architecture.md is behind: python scripts/layout.py")
        return int(renewed != text)
    PAGE.write_text(renewed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
