"""The options of the policy `llm`: what is wrong is said before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.cli.main import run
from cuda_agent.cli.support.settings import complete_run
from cuda_agent.core.config import OptimizeOptions, Price
from cuda_agent.core.settings import Settings


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "llm"], "Give --model"),
        (["--model", "m"], "Add --policy llm"),
        (["--policy", "llm", "--model", "m", "--base-url", "http://user:secret@h/v1"], "user, password or query"),
        (["--policy", "llm", "--model", "m", "--base-url", "h:8000"], "http(s)://HOST"),
        (["--policy", "llm", "--model", "m", "--max-cost", "1"], "Give --prices FILE"),
        (["--policy", "llm", "--model", "m", "--prices", "/no/such"], "Can't read /no/such"),
        (["--policy", "llm", "--model", "m", "--tools", "other"], "'tagged'"),
    ],
)
def test_wrong_options(arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["optimize", str(tmp_path / "t.py"), "--out", str(tmp_path / "run"), *arguments]) == 2
    shown = capsys.readouterr().err
    assert says in shown and "secret" not in shown
    assert not (tmp_path / "run").exists()


def test_what_they_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"m": {"input": 1, "output": 2}}')
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1/")
    given = {"model": "m", "reasoning": "drop", "tools": "tagged", "context_tokens": 32_768}
    settings = Settings(values={"judge": {"device": "cpu"}, "policy": "llm", "limits": {"cost": 3}, "llm": given})
    complete_run(settings, prices)
    made = settings.parse(OptimizeOptions).llm
    assert made is not None
    assert (made.base_url, made.price) == ("http://127.0.0.1:8000/v1", Price(input=1, output=2))
    assert (made.reasoning, made.tools, made.context_tokens) == ("drop", "tagged", 32_768)


def test_a_file_serves_other_policies_too() -> None:
    settings = Settings(values={"judge": {"device": "cpu"}, "limits": {"cost": 3}, "llm": {"model": "m"}})
    complete_run(settings, None)
    assert settings.parse(OptimizeOptions).llm is None
