"""Documents: links resolve, pages that the source names exist, results are cited."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]:\s*(\S+)", re.M)
_NAMED = re.compile(r"\b(docs/[a-z-]+\.md)(?:#([a-z0-9-]+))?")


def _tracked(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "-co", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.splitlines() if (path := ROOT / name).is_file()]


def _links(page: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)
    for match in _LINK.finditer(text):
        target = match[1] or match[2]
        if "://" not in target and not target.startswith("mailto:"):
            yield target


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", _tracked("*.md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in _links(page):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    assert broken == []


def test_pages_that_the_source_names_exist() -> None:
    broken = []
    for file in _tracked("src/*.py", "src/*.yaml", "src/*.md", "scripts/*", "benchmarks/*.py", "tests/*.py"):
        for page, anchor in _NAMED.findall(file.read_text()):
            if not (ROOT / page).is_file() or (anchor and anchor not in _anchors(ROOT / page)):
                broken.append(f"{file.relative_to(ROOT)}: {page}#{anchor}")
    assert broken == []


def test_every_result_is_named_by_its_page() -> None:
    results = ROOT / "benchmarks" / "results"
    table = (ROOT / "docs" / "benchmarks.md").read_text()
    for folder in results.iterdir():
        page = (folder / "README.md").read_text()
        unnamed = [file.name for file in folder.iterdir() if file.name not in page and file.suffix != ".md"]
        if folder.name != "2026-11-22-h200-examples":  # a file for each example
            assert unnamed == [], folder.name
        assert folder.name in table, "docs/benchmarks.md has no link to it"
