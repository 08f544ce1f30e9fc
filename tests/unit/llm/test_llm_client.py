"""The client against the scripted server: real HTTP, real SDK."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.core.config import LanguageModelOptions, Price
from cuda_agent.core.errors import CudaAgentError, PolicyError, UsageError
from cuda_agent.llm.chat import ChatRequest, ContextExceeded, Reply, Usage
from cuda_agent.llm.client import Client, make_client
from cuda_agent.llm.keys import Key, find_key
from cuda_agent.llm.prices import cost_of, load_price
from integration.scripted_server import ErrorEvent, Refuse, Say, ScriptedServer, Step

pytest.importorskip("openai")
SECRET = "sk-test-0123456789abcdefghij"
TOOLS = [{"type": "function", "function": {"name": "Read", "parameters": {"type": "object"}}}]
HELLO = ChatRequest([{"role": "user", "content": "hello"}], TOOLS)


def ask(server: ScriptedServer, *, key: Key | None = None, notices: list[str] | None = None, **options: Any) -> Reply:
    settings = LanguageModelOptions(model="scripted", base_url=server.base_url, **options)
    client = make_client(settings, key, (notices if notices is not None else []).append)
    if "patient" not in (notices or []):
        client.sleep = lambda seconds: None
    return client.complete(HELLO)


def test_text_reasoning_and_parallel_calls_are_put_together() -> None:
    calls = [("Read", {"path": "model.py"}), ("Compile", "")]
    with ScriptedServer([Say("I look at it.", calls, reasoning="What is there to see?")]) as server:
        reply = ask(server, temperature=0.5)
    assert reply.text == "I look at it."
    assert reply.reasoning == "What is there to see?"
    assert [(call.name, call.arguments) for call in reply.calls] == [("Read", '{"path": "model.py"}'), ("Compile", "")]
    assert reply.finish == "tool_calls"
    sent = server.requests[0]
    assert reply.usage == Usage(sent.tokens, reply.usage.written, sent.tokens // 2)
    assert reply.usage.written > 0
    assert sent.body["temperature"] == 0.5
    assert sent.body["stream_options"] == {"include_usage": True}
    assert sent.body["tools"] == TOOLS


@pytest.mark.parametrize("kind", ["same_index", "no_ids"])
def test_servers_that_number_calls_otherwise(kind: str) -> None:
    say = Say(calls=[("Read", {"path": "a"}), ("Glob", {})], same_index=kind == "same_index", with_ids=kind != "no_ids")
    with ScriptedServer([say]) as server:
        reply = ask(server)
    assert [(call.name, call.arguments) for call in reply.calls] == [("Read", '{"path": "a"}'), ("Glob", "{}")]


@pytest.mark.parametrize(
    ("sent", "reasoning", "text"),
    [
        ("<think>\nhm\n</think>\nyes", "hm", "yes"),
        ("hm</think>yes", "hm", "yes"),
        ("a <think> b", "", "a <think> b"),
        ("so <think>hm</think>", "", "so <think>hm</think>"),
    ],
)
def test_thoughts_inside_the_text_are_told_apart(sent: str, reasoning: str, text: str) -> None:
    with ScriptedServer([Say(sent)]) as server:
        reply = ask(server)
    assert (reply.reasoning, reply.text) == (reasoning, text)


def test_without_usage_the_tokens_are_an_estimate_and_say_so() -> None:
    with ScriptedServer([Say("yes", with_usage=False)]) as server:
        usage = ask(server).usage
    assert usage.estimated and usage.read > 0 and usage.written == 1


@pytest.mark.parametrize(
    "failure",
    [
        Refuse(429, "slow down"), Refuse(500), Refuse(503), Refuse(408), ErrorEvent(), Say("x", garbage=True),
        Say("a long answer", cut_after=2), Say("never says that it is done", ends=False),
    ],
)  # fmt: skip
def test_what_may_pass_is_tried_again(failure: Step) -> None:
    notices: list[str] = []
    with ScriptedServer([failure, failure, Say("yes")]) as server:
        assert ask(server, notices=notices).text == "yes"
    assert len(server.requests) == 3
    assert server.requests[0].body == server.requests[2].body
    assert len([text for text in notices if "attempt" in text]) == 2


def test_retry_after_is_respected() -> None:
    with ScriptedServer([Refuse(429, retry_after="1"), Say("yes")]) as server:
        ask(server, notices=["patient"])
    assert 1.0 <= server.requests[1].at - server.requests[0].at < 3.0


def test_a_pause_beyond_all_patience_ends_the_run() -> None:
    with ScriptedServer([Refuse(429, retry_after="86400")]) as server, pytest.raises(PolicyError, match=r"86,400 s"):
        ask(server)
    assert len(server.requests) == 1


def test_attempts_are_bounded() -> None:
    with ScriptedServer([Refuse(502, "bad gateway")]) as server, pytest.raises(PolicyError, match="bad gateway; 3 att"):
        ask(server, attempts=3)
    assert len(server.requests) == 3


def test_nobody_there() -> None:
    with ScriptedServer([Say()]) as server:
        pass
    with pytest.raises(PolicyError, match=r"No connection.*Is the server running"):
        ask(server, attempts=2)


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (Refuse(401, "bad key", "invalid_api_key"), "refuses the key.*--api-key-file"),
        (Refuse(403), "refuses the key"),
        (Refuse(429, "You exceeded your current quota", "insufficient_quota"), "quota or balance.*Add credit"),
        (Refuse(402, "Insufficient Balance"), "quota or balance"),
        (Refuse(404, "no such model"), "no model 'scripted'.*--base-url"),
        (Refuse(400, "tools are not supported"), "refuses the request.*--tools tagged"),
        (ErrorEvent("gone", "insufficient_quota"), "quota is used up"),
    ],
)
def test_what_cannot_pass_ends_at_once(failure: Step, says: str) -> None:
    with ScriptedServer([failure]) as server, pytest.raises(PolicyError, match=says) as caught:
        ask(server)
    assert len(server.requests) == 1
    assert caught.value.remedy
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_a_request_that_is_too_long() -> None:
    with ScriptedServer([Say()], context_tokens=3) as server, pytest.raises(ContextExceeded, match="maximum context"):
        ask(server)


def test_a_server_that_knows_no_stream_options() -> None:
    def old(request: Any) -> Step:
        known = "stream_options" not in request.body
        return Say("yes") if known else Refuse(400, "Unrecognized request argument: stream_options")

    with ScriptedServer(old) as server:
        assert ask(server).usage.estimated
    assert len(server.requests) == 2


def test_the_key_is_sent_and_nowhere_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key"
    file.write_text(SECRET + "\n")
    key = find_key("http://127.0.0.1/v1", file)
    assert key is not None
    with ScriptedServer([Say("yes")], key=SECRET) as server:
        assert ask(server, key=key).text == "yes"
    with ScriptedServer([Refuse(401, f"Incorrect API key provided: {SECRET[:10]}******hij: {SECRET}")]) as server:
        with pytest.raises(PolicyError) as caught:
            ask(server, key=key)
        with pytest.raises(PolicyError):
            ask(server, key=None)
    assert server.requests[-1].authorization == "Bearer none"
    shown = f"{caught.value!r} {caught.value} {key} {key!r} {caught.value.remedy} {capsys.readouterr()}"
    assert SECRET not in shown and SECRET[:10] not in shown and "[key]" in shown
    with pytest.raises(TypeError):
        __import__("pickle").dumps(key)


def test_secrets_of_the_environment_are_shown_by_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMEBODYS_API_KEY", SECRET)
    with ScriptedServer([Refuse(403, f"not for {SECRET}")]) as server, pytest.raises(PolicyError) as caught:
        ask(server)
    assert SECRET not in str(caught.value)


def test_where_a_key_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_AGENT_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    elsewhere, openai = "http://127.0.0.1:8000/v1", "https://api.openai.com/v1"
    assert find_key(elsewhere, None) is None
    monkeypatch.setenv("OPENAI_API_KEY", "for-openai")
    assert find_key(elsewhere, None) is None, "nobody's key goes to somebody else"
    assert find_key("https://api.openai.com.example.org/v1", None) is None
    assert (key := find_key(openai, None)) is not None and key.reveal() == "for-openai"
    monkeypatch.setenv("OPENAI_BASE_URL", elsewhere)
    assert find_key(elsewhere, None) is not None
    monkeypatch.setenv("CUDA_AGENT_API_KEY", "ours")
    assert (key := find_key(elsewhere, None)) is not None and key.reveal() == "ours"
    for bad in ("", "two words", "line\nline", '"quöted"'):
        (tmp_path / "key").write_text(bad)
        with pytest.raises(UsageError) as caught:
            find_key(elsewhere, tmp_path / "key")
        assert not bad or bad not in str(caught.value)
    with pytest.raises(UsageError, match="Can't read the key file"):
        find_key(elsewhere, tmp_path / "none")


@pytest.mark.parametrize("url", ["ftp://x/v1", "localhost:8000", "http://user:pass@x/v1", "http://x/v1?key=abc"])
def test_an_address_holds_no_secret(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        LanguageModelOptions.parse({"model": "m", "base_url": url})
    assert "pass@" not in str(caught.value) and "abc" not in str(caught.value)


def test_prices(tmp_path: Path) -> None:
    table = tmp_path / "prices.yaml"
    table.write_text("small: {input: 1, output: 4, cached_input: 0.5}\n'*': {input: 10, output: 40}\n")
    usage = Usage(1_000_000, 500_000, 400_000)
    assert cost_of(usage, load_price(table, "small")) == pytest.approx(0.6 + 0.2 + 2.0)
    assert cost_of(usage, load_price(table, "other")) == pytest.approx(10 + 20)
    table.write_text("small: {input: 1, output: 4}\n")
    with pytest.raises(UsageError, match="doesn't name 'other'"):
        load_price(table, "other")
    for bad in ("[1]", "small: 3", "a: b: c", "small: {input: 1, output: -1}", "small: {inputs: 1, output: 1}"):
        table.write_text(bad)
        with pytest.raises(CudaAgentError):
            load_price(table, "small")
    assert load_price.__doc__ and Price(input=1, output=1).cached_input is None


def test_our_own_bug_is_not_the_servers() -> None:
    def broken(keywords: dict[str, Any]) -> Any:
        raise TypeError("ours")

    options = LanguageModelOptions(model="m")
    with pytest.raises(TypeError, match="ours"):
        Client(options, None, broken, print, time.sleep).complete(HELLO)
