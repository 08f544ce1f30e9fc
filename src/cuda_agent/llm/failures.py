"""Classifies failed requests: to be tried again, too long for the model, or final, with cause and remedy."""

import sys
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from json import JSONDecodeError
from typing import Any

from cuda_agent.core.assets import tables, words
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


_TRANSIENT_STATUS = (408, 409, 425, 429)
_SHOWN = 400


def classify(error: Exception, base_url: str, model: str) -> RequestFailure | None:
    """Classifies an exception of a request. Returns None for one that isn't the endpoint's, which is our own bug."""
    import openai

    facts: dict[str, Any] = {"url": base_url, "model": model, "how_to_give": HOW_TO_GIVE}
    wait_s = None
    if isinstance(error, openai.APIStatusError):
        facts |= {"status": error.status_code, "said": _message(error)}
        name = _by_status(error, error.status_code, facts["said"])
        wait_s = _retry_after(error) if name == "status" else None
    elif isinstance(error, openai.APITimeoutError):
        name = "silent"
    elif isinstance(error, openai.APIConnectionError):
        name, facts["said"] = "unreachable", _cut(str(error.__cause__ or error))
    elif isinstance(error, openai.APIError):
        facts["said"] = _message(error)
        name = _in_stream(error, facts["said"])
    elif _broke_off(error):
        name, facts["said"] = "ended", _cut(str(error) or type(error).__name__)
    else:
        return None
    kind, cause, remedy = tables(__file__)["failures"][name]
    return RequestFailure(FailureKind(kind), cause.format(**facts), remedy.format(**facts), wait_s)


def _by_status(error: Any, status: int, said: str) -> str:
    """Returns the name of a failure with a status."""
    if status == 402 or _has_code(error, "quota_codes"):
        return "quota"
    if status in (401, 403):
        return "key"
    if status == 404:
        return "model"
    if status in (400, 413, 422) and _says_too_long(error, said):
        return "length"
    if status in (400, 422) and "stream_options" in said:  # foreign text: the endpoint's
        return "option"
    return "status" if status in _TRANSIENT_STATUS or status >= 500 else "request"


def _in_stream(error: Any, said: str) -> str:
    """Returns the name of an error event inside a stream that began well. Most often the server is overloaded."""
    if _has_code(error, "quota_codes"):
        return "quota_in_stream"
    return "length" if _says_too_long(error, said) else "ended_in_stream"


def _says_too_long(error: Any, said: str) -> bool:
    if _has_code(error, "length_codes"):
        return True
    return any(phrase in said.lower() for phrase in tables(__file__)["too_long"])  # foreign text: the endpoint's


def _has_code(error: Any, table: str) -> bool:
    body = _body(error)
    found = (getattr(error, "code", None), getattr(error, "type", None), body.get("code"), body.get("type"))
    return any(code in words(__file__, table) for code in found)


def _message(error: Any) -> str:
    body = _body(error)
    inner = body.get("error")
    nested = inner.get("message") if isinstance(inner, dict) else None
    for said in (body.get("message"), body.get("detail"), inner, nested):
        if isinstance(said, str) and said:
            return _cut(said)
    return _cut(str(getattr(error, "message", "") or error))


def _body(error: Any) -> dict[str, Any]:
    return error.body if isinstance(getattr(error, "body", None), dict) else {}


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


def _broke_off(error: Exception) -> bool:
    """Whether an error is from reading an answer. The HTTP library below the SDK has had two names."""
    kinds = (getattr(sys.modules.get(name), "TransportError", BrokenStream) for name in ("httpx", "httpx2"))
    return isinstance(error, (BrokenStream, JSONDecodeError, UnicodeDecodeError, ConnectionError, *kinds))


def _cut(text: str) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _SHOWN else line[:_SHOWN] + " …"
