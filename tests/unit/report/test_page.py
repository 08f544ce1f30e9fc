"""The page as text: nothing from outside, nothing from inside that could run, everything decodable."""

from __future__ import annotations

import base64
import gzip
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from builders import ratio, stack, timing
from cuda_agent.bench.metrics import metrics_of
from cuda_agent.core.bench import Metrics
from cuda_agent.core.extraction import WholeModel, WholePart
from cuda_agent.report import page as page_module
from cuda_agent.report.load import Recorded, load
from cuda_agent.report.page import Page, render
from report_runs import HOSTILE, bench_directory, example_run, hostile_result

_VOID = {"meta", "input", "link", "img", "br", "hr"}


class Elements(HTMLParser):
    """Tags with their attributes, and the texts of scripts; complains where elements aren't closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.packed: dict[str, str] = {}
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        if tag == "script" and attributes.get("type") == "application/gzip" and self.open[-1:] == ["script"]:
            raw = gzip.decompress(base64.b64decode(data))
            self.packed[str(attributes["id"])] = raw.decode()
        else:
            self.text += data


def _render(run: Recorded, metrics: Metrics | None = None) -> Page:
    return render(run, metrics or metrics_of(run.results, tasks=len(run.rows)), "runs/it's one")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Elements, list[Elements], str]:
    path = bench_directory(tmp_path_factory.mktemp("hostile") / "run")
    hostile_result(path)
    html = _render(load(path)).html
    outer = Elements(html)
    return outer, [Elements(text) for text in outer.packed.values()], html


def test_nothing_is_asked_of_a_network(hostile: tuple[Elements, list[Elements], str]) -> None:
    outer, parts, html = hostile
    for elements in (outer, *parts):
        for tag, attributes in elements.tags:
            assert tag not in ("img", "iframe", "object", "embed", "link", "base", "frame")
            assert "src" not in attributes
            assert str(attributes.get("href", "#")).startswith("#")
    assert "url(" not in html.split("</style>")[0]


def test_hostile_texts_stay_texts(hostile: tuple[Elements, list[Elements], str]) -> None:
    outer, parts, _ = hostile
    for elements in (outer, *parts):
        for _, attributes in elements.tags:
            assert not [name for name in attributes if name.startswith("on")]
            assert "javascript:" not in "".join(str(value) for value in attributes.values())
    scripts = [attributes for tag, attributes in outer.tags if tag == "script"]
    assert [attributes for attributes in scripts if attributes.get("type") != "application/gzip"] == [{}]
    assert not [tag for part in parts for tag, _ in part.tags if tag == "script"]
    shown = outer.text + "".join(part.text for part in parts)
    assert "window.broken=1" in shown and "{{7*7}}" in shown and "49" not in HOSTILE
    assert "\u202e" not in shown and "\u2066" not in shown and "[U+202E]" in shown


def test_only_its_own_style_and_script_may_run(hostile: tuple[Elements, list[Elements], str]) -> None:
    outer, _, html = hostile
    policy = next(str(a["content"]) for tag, a in outer.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    script = html.rsplit("<script>", 1)[1].split("</script>", 1)[0]
    assert style is not None
    for text in (style[1], script):
        assert page_module._digest(text) in policy


def test_every_part_that_is_asked_for_is_there(hostile: tuple[Elements, list[Elements], str]) -> None:
    outer, parts, _ = hostile
    asked = {a["data-blob"] for e in (outer, *parts) for _, a in e.tags if a.get("data-blob")}
    asked |= {a["value"] for e in parts for tag, a in e.tags if tag == "option" and a.get("value")}
    assert {f"b-{name}" for name in asked} == set(outer.packed)


def test_a_task_shows_code_samples_and_transcript(tmp_path: Path) -> None:
    outer = Elements(_render(load(example_run(tmp_path / "run", "rmsnorm_residual"))).html)
    shown = "".join(Elements(text).text for text in outer.packed.values())
    for wanted in ("Residual addition and RMS norm", "class Model(nn.Module)", "Raw samples", " samples", "Turn 1"):
        assert wanted in shown
    assert "Eager stores intermediate results in memory" in shown
    assert "537 MB" in shown and "rows_sum_mul_rsqrt_kernel" in shown


def test_a_word_is_shown_with_the_command_that_records_it(tmp_path: Path) -> None:
    html = _render(load(bench_directory(tmp_path / "run"))).html
    assert "cuda-agent audit &#39;runs/it&#39;&#34;&#39;&#34;&#39;s one&#39;" in html


def test_empty_and_failed_runs_have_a_page(tmp_path: Path) -> None:
    path = bench_directory(tmp_path / "run", waiting=0)
    lines = (path / "results.jsonl").read_text().splitlines()
    (path / "results.jsonl").write_text("\n".join(line for line in lines if '"no_task"' in line) + "\n")
    failed = load(path)
    assert "No task has a time yet" in _render(failed).html
    (path / "results.jsonl").unlink()
    assert "20 of 20 tasks have no result yet" in _render(load(path), Metrics(tasks=20, done=0, groups=())).html


def test_a_page_that_grows_too_large_shortens_transcripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load(example_run(tmp_path / "run", "swiglu"))
    whole = _render(run).html
    monkeypatch.setattr(page_module, "MOST_BYTES", len(whole) - 1)
    assert "cut to 1,200 characters" in _render(run).html


def test_a_whole_model_stands_before_its_parts(tmp_path: Path) -> None:
    example_run(tmp_path / "mine" / "runs" / "swiglu", "swiglu")
    (tmp_path / "mine" / "extraction.json").write_text("{}")
    part = WholePart(
        task=HOSTILE, key="0", candidate_digest="0", run="runs/swiglu", paths=("layers.0",), calls=32, fallbacks=1,
        share=0.62, speedup=1.5,
    )  # fmt: skip
    WholeModel(
        model=HOSTILE, key="0", device="cuda", precision="tf32", parts=(part,), agreed=True, covered=0.62,
        predicted=1.26, original=timing(2000.0), patched=timing(1600.0), speedup=ratio("eager", 1.24),
        others={"compile": ratio("compile", 1.1)},
        sandbox="full", stack=stack(), started="2026-11-21T18:00:00+00:00",
    ).write(tmp_path / "mine")  # fmt: skip
    page = Elements(_render(load(tmp_path / "mine")).html)
    assert "62.0 %" in page.text and "1.26×" in page.text and "torch.compile (float32)" in page.text
    assert not [tag for tag, _ in page.tags if tag == "img"]


def test_a_training_run_has_charts(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {n}, "reward/mean": {n / 9}}}\n' for n in range(9)))
    html = _render(load(tmp_path)).html
    assert "reward/mean" in html and 'class="curve"' in html
