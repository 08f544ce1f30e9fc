"""Classifies failed requests: to be tried again, too long for the model, or final, with cause and remedy."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from json import JSONDecodeError
from typing import Any

from cuda_agent.llm.keys import HOW_TO_GIVE
from cuda_agent.llm.stream import BrokenStream


class FailureKind(StrEnum):
    """What can succeed after a failure. `TRANSIENT`: the same request, later. `TOO_LONG`: a shorter request.
    `UNKNOWN_OPTION`: a request without the option that the server doesn't know. `FATAL`: none."""

    TRANSIENT = "transient"
    TOO_LONG = "too_long"
    UNKNOWN_OPTION = "unknown_option"
    FATAL = "fatal"


@dataclass(frozen=True)
class RequestFailure:
    """Why a request failed. `wait_s` is the wait that the server asked for, or None."""

    kind: FailureKind
    cause: str
    remedy: str = ""
    wait_s: float | None = None


_QUOTA_CODES = {
    "insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_balance",
    "insufficient_user_quota", "credit_balance_too_low",
}  # fmt: skip
_LENGTH_CODES = {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"}
_LENGTH_WORDS = (
    "maximum context length", "context length", "context window", "context size", "prompt is too long",
    "maximum input length", "too many tokens", "input is too long", "max_prompt_length", "maximum prompt length",
)  # fmt: skip
_TRANSIENT_STATUS = (408, 409, 425, 429)
_SHOWN = 400


def classify(error: Exception, base_url: str, model: str) -> RequestFailure | None:
    """Classifies an exception of a request. Returns None for one that isn't the endpoint's, which is our own bug."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return _by_status(error, base_url, model)
    if isinstance(error, openai.APITimeoutError):
        return RequestFailure(FailureKind.TRANSIENT, f"{base_url} was silent for too long", "Is the server overloaded?")
    if isinstance(error, openai.APIConnectionError):
        why = _cut(str(error.__cause__ or error))
        return RequestFailure(
            FailureKind.TRANSIENT, f"No connection to {base_url} ({why})", "Is the server running there?"
        )
    if isinstance(error, openai.APIError):
        return _in_stream(error, base_url)
    if isinstance(error, BrokenStream | JSONDecodeError | UnicodeDecodeError | ConnectionError) or _is_transport(error):
        return RequestFailure(
            FailureKind.TRANSIENT, f"{base_url} broke off its answer ({_cut(str(error) or type(error).__name__)})"
        )
    return None


def _by_status(error: Any, base_url: str, model: str) -> RequestFailure:
    status, words, said = int(error.status_code), _codes(error), _message(error)
    if status == 402 or words & _QUOTA_CODES:
        return RequestFailure(
            FailureKind.FATAL, f"{base_url} says that the quota or balance is used up ({status}: {said})",
            "Add credit or use another key, then resume the run",
        )  # fmt: skip
    if status in (401, 403):
        return RequestFailure(
            FailureKind.FATAL, f"{base_url} refuses the key ({status}: {said})", f"{HOW_TO_GIVE}, then resume the run"
        )
    if status == 404:
        return RequestFailure(
            FailureKind.FATAL, f"{base_url} has no model {model!r}, or is no OpenAI endpoint (404: {said})",
            "Check --model and --base-url, which usually ends in /v1",
        )  # fmt: skip
    if status in (400, 413, 422) and _says_too_long(words, said):
        return RequestFailure(FailureKind.TOO_LONG, said)
    if status in (400, 422) and "stream_options" in said:  # foreign text: the endpoint's
        return RequestFailure(FailureKind.UNKNOWN_OPTION, said)
    if status in _TRANSIENT_STATUS or status >= 500:
        return RequestFailure(
            FailureKind.TRANSIENT, f"{base_url} answered {status}: {said}", wait_s=_retry_after(error)
        )
    return RequestFailure(
        FailureKind.FATAL, f"{base_url} refuses the request ({status}: {said})",
        "Models without tool calls need --tools tagged; some refuse --temperature or need --reasoning drop",
    )  # fmt: skip


def _in_stream(error: Any, base_url: str) -> RequestFailure:
    """Classifies an error event inside a stream that began well. Most often the server is overloaded."""
    words, said = _codes(error), _message(error)
    if words & _QUOTA_CODES:
        return RequestFailure(
            FailureKind.FATAL, f"{base_url} says that the quota is used up ({said})", "Add credit, then resume"
        )
    if _says_too_long(words, said):
        return RequestFailure(FailureKind.TOO_LONG, said)
    return RequestFailure(FailureKind.TRANSIENT, f"{base_url} broke off its answer: {said}")


def _says_too_long(words: set[str], said: str) -> bool:
    if words & _LENGTH_CODES:
        return True
    return any(phrase in said.lower() for phrase in _LENGTH_WORDS)  # foreign text: the endpoint's


def _codes(error: Any) -> set[str]:
    body = error.body if isinstance(getattr(error, "body", None), dict) else {}
    found = (getattr(error, "code", None), getattr(error, "type", None), body.get("code"), body.get("type"))
    return {word for word in found if isinstance(word, str)}


def _message(error: Any) -> str:
    body = error.body if isinstance(getattr(error, "body", None), dict) else {}
    inner = body.get("error")
    for said in (
        body.get("message"),
        body.get("detail"),
        inner,
        inner.get("message") if isinstance(inner, dict) else 0,
    ):
        if isinstance(said, str) and said:
            return _cut(said)
    return _cut(str(getattr(error, "message", "") or error))


def _retry_after(error: Any) -> float | None:
    """Returns the wait in seconds from `retry-after-ms` or `retry-after` (seconds or a date), None where neither is
    valid."""
    # litellm makes a response of its own and keeps the server's headers in this attribute.
    real = getattr(error, "litellm_response_headers", None)
    headers = real or getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(milliseconds) / 1000)
        if (after := headers.get("retry-after")) is None:
            return None
        try:
            return max(0.0, float(after))
        except ValueError:
            return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _is_transport(error: Exception) -> bool:
    """Whether an error is from the HTTP library below the SDK, which has had two names."""
    kinds = (getattr(sys.modules.get(name), "TransportError", None) for name in ("httpx", "httpx2"))
    return any(kind is not None and isinstance(error, kind) for kind in kinds)


def _cut(text: str) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _SHOWN else line[:_SHOWN] + " …"
