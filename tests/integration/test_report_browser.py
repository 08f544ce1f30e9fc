"""The report in a real browser, headless: no error, no request, sorting, filters, keys, verdicts, colours, print."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.cli.main import run as cli
from cuda_agent.core.bench import Audit, Audits
from report_runs import HOSTILE, bench_directory, example_run, hostile_result

pytestmark = pytest.mark.integration
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed (extra: dev)")

#: of normal text on its background, WCAG 2.1 AA.
CONTRAST = 4.5
_TABLE = "#task-table tbody tr:not([hidden])"
_CONTRASTS = (Path(__file__).parent.parent / "data" / "contrasts.js").read_text()


@dataclass
class Browsing:
    """Opens pages, and remembers whatever they complain of or ask for."""

    browser: Any
    complaints: list[str] = field(default_factory=list)

    def open(self, page: Path, fragment: str = "", **options: Any) -> Any:
        tab = self.browser.new_page(viewport={"width": 1320, "height": 900}, **options)
        tab.set_default_timeout(20_000)
        tab.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        tab.on("request", lambda request: self._asked(request.url))
        tab.goto(page.as_uri() + fragment)
        tab.wait_for_selector("html[data-ready]", state="attached")
        return tab

    def _asked(self, url: str) -> None:
        if not url.startswith(("file:", "data:")):
            self.complaints.append(f"request of {url}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_api.sync_playwright() as playwright:
        path = found or playwright.chromium.executable_path
        if not os.path.exists(path):
            pytest.skip("there is no Chromium: apt-get install chromium, or playwright install chromium")
        # As root, Chromium has no sandbox of its own; the page is ours.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.getuid() == 0 else [])
        yield browser
        browser.close()


@pytest.fixture
def browsing(browser: Any) -> Iterator[Browsing]:
    found = Browsing(browser)
    yield found
    for context in browser.contexts:
        context.close()
    assert found.complaints == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = bench_directory(tmp_path_factory.mktemp("report") / "run")
    hostile_result(path)
    Audits(audits=(Audit(task="moe_gate", verdict="doubtful", note="whose kernels?", by="me", when="today"),)).write(
        path
    )
    assert cli(["report", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def page(run: Path) -> Path:
    return run / "report.html"


def _names(tab: Any) -> list[str]:
    return [str(row.get_attribute("data-id")) for row in tab.query_selector_all(_TABLE)]


def test_sorting(browsing: Browsing, page: Path) -> None:
    tab = browsing.open(page)
    head = tab.locator("th", has=tab.locator("button[data-key=eager]"))
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    names = _names(tab)
    assert names[:2] == ["projection_mean", "rotary_embedding"] and len(names) == 22
    assert "wrong_answers" in names[15:], "tasks without a time come last"
    head.locator("button").click()
    assert _names(tab)[0] == "swiglu" and "wrong_answers" in _names(tab)[15:]
    tab.locator("button[data-key=name]").press("Enter")
    assert _names(tab)[1:4] == ["adaln_modulate", "conv_bn_silu", "conv_transpose_gated"]


def test_filters(browsing: Browsing, page: Path) -> None:
    tab = browsing.open(page)
    count = tab.locator("#f-count")
    for field_id, value, wanted in (
        ("f-text", "RELATIVE error", ["wrong_answers"]),
        ("f-state", "error", ["no_task"]),
        ("f-least", "6", ["depthwise_glu", "projection_mean"]),
    ):
        control = tab.locator(f"#{field_id}")
        control.select_option(value) if field_id == "f-state" else control.fill(value)
        assert _names(tab) == wanted
        assert count.inner_text() == f"{len(wanted)} of 22 tasks"
        tab.locator(".filters button[type=reset]").click()
        sync_api.expect(count).to_have_text("22 tasks")
    tab.locator("#f-level").select_option("1")
    tab.locator("#f-roofline").select_option("compute")
    tab.locator("#f-check").check()
    assert 0 < len(_names(tab)) < 6


def test_keys(browsing: Browsing, page: Path) -> None:
    tab = browsing.open(page)
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    tab.keyboard.press("/")
    tab.keyboard.type("norm")
    tab.keyboard.press("Escape")
    for key in ("j", "j", "k", "j"):
        tab.keyboard.press(key)
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#detail h1")
    assert tab.locator("#detail h1").inner_text() == "linear_rmsnorm_silu"
    assert tab.locator("#place").inner_text() == "2 of 3"
    tab.keyboard.press("j")
    sync_api.expect(tab.locator("#detail h1")).to_have_text("rmsnorm_residual")
    assert tab.locator("#next").is_disabled()
    tab.keyboard.press("Escape")
    tab.wait_for_selector("#list", state="visible")
    assert "rmsnorm_residual" in tab.evaluate("document.activeElement.textContent")
    tab.keyboard.press("?")
    assert tab.locator("#help").is_visible()
    tab.keyboard.press("Escape")
    assert not tab.locator("#help").is_visible()


def test_a_task_opens_by_its_address(browsing: Browsing, page: Path) -> None:
    tab = browsing.open(page, "#task=rmsnorm_residual")
    tab.wait_for_selector("#detail .code .k")
    assert "class Model(nn.Module)" in tab.locator("#detail .code").first.inner_text()
    files = tab.locator("#detail .files select")
    files.select_option(label="model_new.py, 4 lines")
    sync_api.expect(tab.locator(".files pre:not(.gutter)")).to_contain_text("FACTOR")
    assert tab.locator("#detail .strips svg").count() >= 4
    folded = tab.locator("#detail .turns details[data-blob]").first
    folded.locator("summary").click()
    sync_api.expect(folded.locator("pre:not(.gutter)")).not_to_be_empty()
    tab.locator("#back").click()
    tab.wait_for_selector("#list", state="visible")
    tab.goto(page.as_uri() + "#task=nobody%")
    assert tab.locator("#list").is_visible(), "an unknown task leaves the list"


def test_a_verdict_becomes_a_command_that_records_it(browsing: Browsing, run: Path, page: Path) -> None:
    tab = browsing.open(page)
    box = tab.locator("#check [data-word=projection_mean]")
    box.locator("input[value=sound]").check()
    box.locator("input[type=text]").fill('it\'s "algebra"; $(rm -rf x)')
    tab.locator("#check [data-word=moe_gate] input[value=cheating]").check()
    lines = tab.locator("#words-text").input_value().splitlines()
    assert len(lines) == 2 and tab.locator("#words-count").inner_text() == "2 verdicts"
    tab.reload()
    tab.wait_for_selector("html[data-ready]", state="attached")
    assert tab.locator("#words-text").input_value().splitlines() == lines, "kept while the page is looked at"
    for line in lines:
        command = shlex.split(line)
        assert command[:2] == ["cuda-agent", "audit"] and cli(command[1:]) == 0
    said = Audits.read(run).audits
    assert [audit.verdict for audit in said] == ["doubtful", "sound", "cheating"]
    assert said[1].note == 'it\'s "algebra"; $(rm -rf x)' and said[2].task == "moe_gate"


def test_hostile_texts_do_nothing(browsing: Browsing, page: Path) -> None:
    tab = browsing.open(page)
    tab.locator("#f-text").fill("window.broken")
    tab.locator(f"{_TABLE} .open").click()
    tab.wait_for_selector("#detail .turns")
    for folded in tab.locator("#detail details").all():
        folded.locator("summary").first.click()
    tab.wait_for_timeout(300)
    assert tab.evaluate("window.broken") is None
    shown = tab.locator("#detail").inner_text()
    assert "<img src=x onerror=" in shown and "[U+202E]" in shown and "{{7*7}}" in shown
    assert tab.locator("#detail img, #detail script").count() == 0
    assert HOSTILE.split("\u202e")[0] in tab.locator("#detail h1").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colours_can_be_read(browsing: Browsing, page: Path, tmp_path: Path, scheme: str) -> None:
    tab = browsing.open(page, color_scheme=scheme)
    assert tab.evaluate(_CONTRASTS, CONTRAST) == []
    tab.screenshot(path=str(tmp_path / f"report-{scheme}.png"), full_page=True)
    tab.goto(page.as_uri() + "#task=conv_bn_silu")
    tab.wait_for_selector("#detail .code .k")
    assert tab.evaluate(_CONTRASTS, CONTRAST) == []
    tab.screenshot(path=str(tmp_path / f"task-{scheme}.png"), full_page=True)
    ground = "getComputedStyle(document.body).backgroundColor"
    before = tab.evaluate(ground)
    seen = set()
    for _ in range(3):
        tab.locator("#theme").click()
        seen.add(tab.evaluate(ground))
    assert len(seen) == 2 and tab.evaluate(ground) == before


def test_it_prints_and_fits_a_narrow_window(browsing: Browsing, page: Path, tmp_path: Path) -> None:
    tab = browsing.open(page)
    for width in (1320, 1000, 420):
        tab.set_viewport_size({"width": width, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.emulate_media(media="print")
    assert not tab.locator(".bar").is_visible() and not tab.locator(".filters").is_visible()
    assert tab.pdf(path=str(tmp_path / "report.pdf"))[:4] == b"%PDF"
    tab.emulate_media(media="screen")
    tab.goto(page.as_uri() + "#task=swiglu")
    tab.wait_for_selector("#detail h1")
    tab.set_viewport_size({"width": 420, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 420


def test_one_run_opens_with_its_task_and_training_has_charts(browsing: Browsing, tmp_path: Path) -> None:
    path = example_run(tmp_path / "one", "swiglu")
    lines = [{"step": step, "reward": step / 10, "entropy": 1 / (1 + step)} for step in range(20)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert cli(["report", str(path), "--out", str(tmp_path / "one.html")]) == 0
    tab = browsing.open(tmp_path / "one.html")
    tab.wait_for_selector("#detail h1")
    tab.locator("#back").click()
    tab.wait_for_selector("#training figure")
    assert tab.locator("#training figure").count() == 2
