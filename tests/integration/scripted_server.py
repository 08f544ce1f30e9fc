"""A server that speaks the OpenAI chat protocol over HTTP on loopback, and answers by a scenario: plain data, or a
function of the request. It streams as real servers do: text and arguments in small deltas, the usage last.

    with ScriptedServer([Say("…", calls=[("Read", {"path": "model.py"})]), Refuse(429, retry_after="1")]) as server:
        … server.base_url … server.requests
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "scripted"


@dataclass(frozen=True)
class Say:
    """An answer. `calls`: (tool, arguments); arguments that are a string are sent as they are. `cut_after`: the
    connection breaks after so many chunks. `ends`: a chunk says that it is complete. `garbage`: a line that isn't JSON
    comes first."""

    text: str = ""
    calls: Sequence[tuple[str, dict[str, Any] | str]] = ()
    reasoning: str = ""
    finish: str | None = None
    with_usage: bool = True
    cut_after: int | None = None
    garbage: bool = False
    ends: bool = True
    same_index: bool = False
    with_ids: bool = True


@dataclass(frozen=True)
class Refuse:
    """An HTTP error with OpenAI's body."""

    status: int
    message: str = "no"
    code: str | None = None
    retry_after: str | None = None


@dataclass(frozen=True)
class ErrorEvent:
    """An error inside the stream of a request whose status was 200."""

    message: str = "overloaded"
    code: str | None = None


Step = Say | Refuse | ErrorEvent
#: a step, or what makes one of the request's body (and of how many answers were given before).
Scenario = Sequence[Step | Callable[["Request"], Step]] | Callable[["Request"], Step]


@dataclass(frozen=True)
class Request:
    """One request as it came. `turn`: how many answers were given in full before it."""

    index: int
    turn: int
    body: dict[str, Any]
    authorization: str
    at: float = field(default_factory=time.monotonic)

    @property
    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages

    @property
    def tokens(self) -> int:
        """What this server counts: four characters a token, of the body as it came."""
        return len(json.dumps(self.body)) // 4


class ScriptedServer:
    """Runs in a thread while entered. A list of steps is played in order and its last repeated."""

    def __init__(self, scenario: Scenario, *, key: str | None = None, context_tokens: int | None = None) -> None:
        self.requests: list[Request] = []
        self.problems: list[str] = []
        self._scenario, self._key, self._context = scenario, key, context_tokens
        self._answered = 0
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def decide(self, body: dict[str, Any], authorization: str) -> tuple[Request, Step]:
        with self._lock:
            request = Request(len(self.requests), self._answered, body, authorization)
            self.requests.append(request)
            self.problems += _problems(body)
            if self._key is not None and authorization != f"Bearer {self._key}":
                said = f"Incorrect API key provided: {authorization.removeprefix('Bearer ')}"
                return request, Refuse(401, said, code="invalid_api_key")
            if self._context is not None and request.tokens > self._context:
                said = f"This model's maximum context length is {self._context} tokens, you sent {request.tokens}"
                return request, Refuse(400, said, code="context_length_exceeded")
            chosen = self._scenario if callable(self._scenario) else self._scenario[min(request.index, self._last)]
            step = chosen(request) if callable(chosen) else chosen
            if isinstance(step, Say) and step.cut_after is None and step.ends and not step.garbage:
                self._answered += 1
            return request, step

    @property
    def _last(self) -> int:
        return -1 if callable(self._scenario) else len(self._scenario) - 1


def _problems(body: dict[str, Any]) -> list[str]:
    """What a strict server would refuse: calls and answers that don't match, arguments that aren't JSON objects."""
    found = []
    open_calls: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                found.append(f"an answer to no call: {message['tool_call_id']}")
            else:
                open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            found.append(f"calls without answer: {open_calls}")
        calls = message.get("tool_calls") or []
        open_calls = [call["id"] for call in calls]
        if len(set(open_calls)) != len(open_calls):
            found.append(f"ids that aren't distinct: {open_calls}")
        for call in calls:
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                found.append("arguments that aren't an object")
        if message["role"] == "assistant" and not message.get("content") and not calls:
            found.append("an empty message")
    return found + ([f"calls without answer: {open_calls}"] if open_calls else [])


class _Handler(BaseHTTPRequestHandler):
    owner: ScriptedServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not self.path.endswith("/chat/completions"):
            self._refuse(Refuse(404, f"no such path {self.path}"))
            return
        request, step = self.owner.decide(json.loads(raw), self.headers.get("authorization", ""))
        if isinstance(step, Refuse):
            self._refuse(step)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        if isinstance(step, ErrorEvent):
            self._event(json.dumps({"error": {"message": step.message, "code": step.code}}))
            self._end()
            return
        if step.garbage:
            self._event('{"id": "x", "choices": [{"delta": {"cont')
        for number, chunk in enumerate(_chunks(step, request)):
            if step.cut_after is not None and number >= step.cut_after:
                # No terminating chunk: the client sees that the body isn't complete.
                self.close_connection = True
                return
            self._event(json.dumps(chunk))
        self._event("[DONE]")
        self._end()

    def _event(self, data: str) -> None:
        raw = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")

    def _end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def _refuse(self, step: Refuse) -> None:
        error = {"message": step.message, "type": step.code or "error", "code": step.code, "param": None}
        raw = json.dumps({"error": error}).encode()
        self.send_response(step.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        if step.retry_after is not None:
            self.send_header("retry-after", step.retry_after)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _chunks(step: Say, request: Request) -> Iterator[dict[str, Any]]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{request.index}", "object": "chat.completion.chunk", "created": 0, "model": MODEL,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }  # fmt: skip

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(step.reasoning):
        yield chunk({"reasoning_content": piece})
    for piece in _pieces(step.text):
        yield chunk({"content": piece})
    written = len(step.text) + len(step.reasoning)
    for number, (tool, arguments) in enumerate(step.calls):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        index = 0 if step.same_index else number
        head: dict[str, Any] = {"index": index, "type": "function", "function": {"name": tool, "arguments": ""}}
        if step.with_ids:
            head["id"] = f"call_{request.index}_{number}"
        yield chunk({"tool_calls": [head]})
        for piece in _pieces(text, 4000):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        written += len(text) + len(tool)
    if not step.ends:
        return
    yield chunk({}, step.finish or ("tool_calls" if step.calls else "stop"))
    if step.with_usage and request.body.get("stream_options", {}).get("include_usage"):
        read = request.tokens
        usage = {
            "prompt_tokens": read, "completion_tokens": written // 4, "total_tokens": read + written // 4,
            "prompt_tokens_details": {"cached_tokens": read // 2},
        }  # fmt: skip
        yield {
            "id": f"chatcmpl-{request.index}", "object": "chat.completion.chunk", "created": 0, "model": MODEL,
            "choices": [], "usage": usage,
        }  # fmt: skip


def _pieces(text: str, size: int = 7) -> Iterator[str]:
    size = max(size, len(text) // 50)
    for start in range(0, len(text), size):
        yield text[start : start + size]
