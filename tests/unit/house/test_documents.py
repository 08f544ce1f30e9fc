"""Documents stay short, and so do their lines, so that a change to one shows what changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from sources import ROOT, report

MOST_CHARACTERS = 160
MOST_WORDS = {"README.md": 900, "ROADMAP.md": 500, "docs/architecture.md": 1500}
#: of all pages in docs/ together.
MOST_REFERENCE_WORDS = 20_000


def documents() -> list[Path]:
    """Every Markdown file that git knows; what lies in data/ is data."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [Path(name) for name in listed.stdout.splitlines() if not name.startswith("data/")]


def test_no_line_of_a_document_is_long() -> None:
    report(
        (
            (f"{path}:{number}", f"{len(line)} characters, at most {MOST_CHARACTERS}: wrap it or shorten the row")
            for path in documents()
            for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
            if len(line) > MOST_CHARACTERS
        )
    )


def _words(path: Path) -> int:
    return len(path.read_text().split())


def test_documents_have_few_words() -> None:
    found = [(name, _words(ROOT / name), most) for name, most in MOST_WORDS.items()]
    found.append(("docs/", sum(map(_words, (ROOT / "docs").glob("*.md"))), MOST_REFERENCE_WORDS))
    report((name, f"{words} words, at most {most}: shorten it") for name, words, most in found if words > most)
