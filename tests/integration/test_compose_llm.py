"""The composer that asks a language model: a scripted server on loopback, the real SDK and the real command."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.cli.main import run as command
from cuda_agent.core.lines import append, read_lines
from cuda_agent.tasks.compose.language_model import ANSWERS_FILE
from cuda_agent.tasks.compose.run import SEEDS_FILE
from cuda_agent.tasks.crawl import catalogue
from cuda_agent.tasks.records import CANDIDATES_FILE, DatasetTask
from integration.scripted_server import MODEL, Refuse, Request, Say, ScriptedServer
from unit.tasks.compose.test_language_model import SOURCE, answer

pytest.importorskip("openai")
pytestmark = pytest.mark.integration


def propose(request: Request) -> Say:
    """A composition of the first operators that were offered. What it writes would tell if anybody ran it."""
    told = str(request.messages[1]["content"])
    count = int(told.split("problem of ")[1].split()[0])
    names = [line.split("`")[1] for line in told.splitlines() if line.startswith("- `")][:count]
    source = SOURCE + f"\nMARK = open('ran-{request.index}', 'w')\n"
    return Say(answer(source, ", ".join(names)))


def test_compositions_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "set"
    append(folder / SEEDS_FILE, [entry.seed for entry in catalogue.read()])

    def compose(url: str, count: int) -> int:
        options = ["--composer", "llm", "--model", MODEL, "--base-url", url, "--count", str(count)]
        return command(["tasks", "compose", str(folder), *options])

    with ScriptedServer([Refuse(429, retry_after="0"), Say("I'd rather not."), propose]) as server:
        assert compose(server.base_url, 3) == 0
        assert "can't be used" in str(server.requests[2].messages[-1]["content"])
        asked = len(server.requests)
    assert server.problems == []
    tasks = read_lines(folder / CANDIDATES_FILE, DatasetTask)
    assert [task.number for task in tasks] == [0, 1, 2]
    assert all(task.composer == "llm" and len(task.ops) == 2 for task in tasks)
    assert not list(tmp_path.glob("ran-*"))
    assert len(read_lines_of_answers(folder)) == asked - 1

    # The recorded answers give the same tasks again, without a request.
    before = (folder / CANDIDATES_FILE).read_bytes()
    (folder / CANDIDATES_FILE).unlink()
    with ScriptedServer([Refuse(500)]) as server:
        assert compose(server.base_url, 3) == 0
        assert server.requests == []
    assert (folder / CANDIDATES_FILE).read_bytes() == before


def read_lines_of_answers(folder: Path) -> list[str]:
    return (folder / ANSWERS_FILE).read_text().splitlines()
