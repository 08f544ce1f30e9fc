"""A client for an endpoint: it streams, waits and tries again, and raises one clear error where no attempt can succeed.

It uses the official `openai` SDK, or `litellm` for other protocols. Both are optional and imported at first use.
"""

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from cuda_agent.core.config import OPENAI_URL, LanguageModelOptions
from cuda_agent.core.errors import PolicyError, UsageError
from cuda_agent.llm.chat import ChatRequest, ContextExceeded, Notice, Reply
from cuda_agent.llm.failures import FailureKind, RequestFailure, classify
from cuda_agent.llm.keys import Key, find_key, redacted
from cuda_agent.llm.stream import assemble

#: open(keywords): starts one streamed request and returns its chunks.
Open = Callable[[dict[str, Any]], Iterable[Any]]

_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
#: a run ends when the server asks for a longer wait than this. It can be resumed later.
_PATIENCE_S = 900.0
_NO_KEY = "none"


def require(protocol: str) -> None:
    """Raises UsageError when the package that speaks `protocol` isn't installed."""
    if find_spec(protocol) is None:
        extra = "llm" if protocol == "openai" else "litellm"
        raise UsageError(
            f"The policy llm needs the package {protocol}, which is not installed",
            f"Install it: pip install 'cuda-agent[{extra}]'",
        )


def prepare(options: LanguageModelOptions | None, key_file: Path | None) -> Key | None:
    """Checks the options before a run begins. Returns the endpoint's key, or None where there is none. Raises
    UsageError: no model was named, the package is missing, or the key can't be read."""
    if options is None:
        raise UsageError("The policy llm needs a model", "Give --model, and --base-url where it isn't OpenAI's")
    require(options.protocol)
    return find_key(options.base_url, key_file)


def make_client(options: LanguageModelOptions, key: Key | None, notice: Notice) -> "Client":
    """Raises UsageError when the package is missing."""
    require(options.protocol)
    open_stream = (_openai if options.protocol == "openai" else _litellm)(options, key)
    return Client(options, key, open_stream, notice)


@dataclass
class Client:
    """A `ChatClient` that sends requests through `open_stream`."""

    options: LanguageModelOptions
    key: Key | None
    open_stream: Open
    notice: Notice
    sleep: Callable[[float], None] = time.sleep
    _with_usage: bool = field(default=True, init=False)

    def complete(self, request: ChatRequest) -> Reply:
        """Returns one reply, after as many attempts as the options allow. Raises ContextExceeded, and PolicyError: the
        key or the request is refused, the quota is used up, or no attempt succeeded."""
        attempt = 0
        while True:
            attempt += 1
            failure = None
            try:
                return self._once(request)
            except Exception as error:
                # This is the boundary to the endpoint. An error that isn't the endpoint's is raised again.
                failure = classify(error, self.options.base_url, self.options.model)
                if failure is None:
                    raise
            # This is outside the handler, so that no exception raised here refers to the SDK's, which holds the key.
            if failure.kind is FailureKind.UNKNOWN_OPTION and self._with_usage:
                self._with_usage = False
                attempt -= 1
            else:
                self._wait(failure, attempt)

    def _once(self, request: ChatRequest) -> Reply:
        keywords: dict[str, Any] = {"model": self.options.model, "messages": list(request.messages), "stream": True}
        if request.tools:
            keywords["tools"] = list(request.tools)
        if self.options.temperature is not None:
            keywords["temperature"] = self.options.temperature
        if self._with_usage:
            keywords["stream_options"] = {"include_usage": True}
        chunks = self.open_stream(keywords)
        try:
            return assemble(chunks, request, self.notice)
        finally:
            close = getattr(chunks, "close", None)
            if close is not None:
                close()

    def _wait(self, failure: RequestFailure, attempt: int) -> None:
        """Sleeps before the next attempt, or raises when there is none."""
        cause, remedy = redacted(failure.cause, self.key), redacted(failure.remedy, self.key)
        if failure.kind is FailureKind.TOO_LONG:
            raise ContextExceeded(cause)
        if failure.kind is not FailureKind.TRANSIENT:
            raise PolicyError(cause, remedy)
        if attempt >= self.options.attempts:
            raise PolicyError(f"{cause}; {attempt} attempts", f"{remedy} Resume the run later".strip())
        wait_s = failure.wait_s
        if wait_s is None:
            wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
        elif wait_s > _PATIENCE_S:
            raise PolicyError(f"{cause}; the server asks to wait {wait_s:,.0f} s", "Resume the run then")
        self.notice(f"{cause}; attempt {attempt + 1} of {self.options.attempts} in {wait_s:.1f} s")
        self.sleep(wait_s)


def _openai(options: LanguageModelOptions, key: Key | None) -> Open:
    import openai

    client = openai.OpenAI(
        api_key=key.reveal() if key is not None else _NO_KEY,
        base_url=options.base_url,
        timeout=openai.Timeout(options.timeout_s, connect=min(30.0, options.timeout_s)),
        max_retries=0,
    )

    def open_stream(keywords: dict[str, Any]) -> Iterable[Any]:
        # The SDK would walk through every message that isn't in `extra_body`, which takes 80 ms for 131,072 tokens.
        long = {name: keywords.pop(name) for name in ("messages", "tools") if name in keywords}
        return cast(Iterable[Any], client.chat.completions.create(messages=[], extra_body=long, **keywords))

    return open_stream


def _litellm(options: LanguageModelOptions, key: Key | None) -> Open:
    """Opens streams by litellm. `model` names the provider too (`anthropic/…`), whose own variables may hold the
    key."""
    import os

    # Without this the import would fetch a table of models from the network.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    named = {} if options.base_url == OPENAI_URL else {"api_base": options.base_url}
    secret = {} if key is None else {"api_key": key.reveal()}

    def open_stream(keywords: dict[str, Any]) -> Iterable[Any]:
        settings = {**named, **secret, "timeout": options.timeout_s, "num_retries": 0}
        return cast(Iterable[Any], litellm.completion(**keywords, **settings))

    return open_stream
