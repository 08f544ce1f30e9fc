"""Typed configuration. An unknown key or value fails with the nearest known one."""

from __future__ import annotations

import difflib
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator

from cuda_agent.core.enums import Device, Precision, RewardBaseline
from cuda_agent.core.errors import UsageError
from cuda_agent.core.record import Record


class Configuration(Record):
    """The base of every configuration."""

    @classmethod
    def parse(cls, values: dict[str, Any], where: str = "") -> Self:
        """Returns the configuration. Raises UsageError that names the bad key or value, with a suggestion. `where` is
        put before every name, such as `speed.` for a part of a larger configuration."""
        for key in values:
            if key not in cls.model_fields:
                near = difflib.get_close_matches(key, cls.model_fields, n=1)
                hint = f"Did you mean {where + near[0]!r}?" if near else f"Known: {', '.join(cls.model_fields)}"
                raise UsageError(f"Unknown setting {where + key!r}", hint)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            reason = first["msg"].removeprefix("Value error, ")  # foreign text: pydantic's
            raise UsageError(f"Setting {where}{'.'.join(map(str, first['loc']))}: {reason}") from None


#: The rule that ends timing rounds before their budget; see `JudgeOptions.timing_stop`.
TimingStop = Literal["settled", "decided"]


class Regression(Configuration):
    """Inputs and weights on which a candidate failed, given by their seeds."""

    seed: int
    """Seed of the inputs."""
    weights_seed: int
    """Seed of the weights."""
    variant: str | None = None
    """Name of the change of the inputs."""


class JudgeOptions(Configuration):
    """The options of judging one task. Times are in seconds, memory in MiB."""

    device: Device
    precision: Precision = Precision.TF32
    reward_baseline: RewardBaseline = RewardBaseline.PUBLISHED
    trials: int = Field(default=5, ge=1)
    #: The longest time of all timing rounds; they end earlier when the ratio's interval is within ±1 %.
    timing_budget_s: float = Field(default=10.0, gt=0)
    #: `settled` ends the rounds when every needed ratio is known to ±1 %. `decided`, for the turns of a search, ends
    #: them when each ratio is clearly on one side of the milestone's 1/0.95, and known to ±5 % or a part of its
    #: distance from it.
    timing_stop: TimingStop = "settled"
    build_timeout_s: float = Field(default=600.0, gt=0)
    call_timeout_s: float = Field(default=120.0, gt=0)
    compile_baseline_timeout_s: float = Field(default=300.0, gt=0)
    host_memory_mib: int = Field(default=65536, gt=0)
    compiler_jobs: int = Field(default=2, ge=1)
    sandbox: Literal["auto", "full", "reduced"] = "auto"
    #: Whether `torch.compile` with `max-autotune` is timed too.
    autotune: bool = False
    #: `wide` adds trials whose whole inputs have scales far from the task's own.
    variants: Literal["usual", "wide"] = "usual"
    #: Trials that earlier candidates for this task failed; they are tried again.
    regressions: tuple[Regression, ...] = ()
    #: `triton`: a candidate without kernels/ whose model_new.py launches Triton kernels is judged too, as a comparison.
    comparison: Literal["triton"] | None = None
    #: The seed of the judge's secret draws; only tests set it.
    seed: int | None = None

    def stopping(self, stop: TimingStop | None) -> JudgeOptions:
        """Returns the options with another rule for the end of timing rounds; None keeps the rule."""
        return self if stop is None else self.model_copy(update={"timing_stop": stop})


class Limits(Configuration):
    """The limits of a run; None is no limit. They are checked before every turn, and a turn that has begun is
    completed."""

    turns: int = Field(default=60, ge=1)
    #: Tokens that the model reads and writes.
    tokens: int | None = Field(default=None, ge=1)
    #: Cost in the currency of the price table.
    cost: float | None = Field(default=None, gt=0)
    #: Wall time of the run, without the time between a kill and its resumption.
    wall_s: float | None = Field(default=None, gt=0)
    #: Time of the judge, which holds the device: building, verifying, timing, and waiting for a shared device.
    judge_s: float | None = Field(default=None, gt=0)


class Price(Configuration):
    """The price of one model per million tokens, in any currency. `cached_input` is by default the same as `input`."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)


class LanguageModelOptions(Configuration):
    """A language model behind an endpoint. The run writes these options to disk, so they never contain a key."""

    model: str = Field(min_length=1)
    base_url: str = "https://api.openai.com/v1"
    #: None is the server's default.
    temperature: float | None = Field(default=None, ge=0, le=2)
    #: The most tokens of a request and its answer; older turns are condensed before the limit.
    context_tokens: int = Field(default=131_072, ge=8192)
    #: `keep` stores the reasoning in the transcript and sends it with later requests; `drop` does neither.
    reasoning: Literal["keep", "drop"] = "keep"
    #: `native` uses the protocol's tool calls; `tagged` uses `<tool_call>` in the text, for models without tool calls.
    tools: Literal["native", "tagged"] = "native"
    protocol: Literal["openai", "litellm"] = "openai"
    price: Price | None = None
    #: The most attempts at one request.
    attempts: int = Field(default=8, ge=1)
    #: The longest silence of a server within an answer, in seconds.
    timeout_s: float = Field(default=600.0, gt=0)

    @field_validator("base_url")
    @classmethod
    def _holds_no_secret(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("give the endpoint as http(s)://HOST/…/v1")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("an endpoint's address can't have a user, password or query; keep the key in its own file")
        return value.rstrip("/")


class OptimizeOptions(Configuration):
    """The options of `cuda-agent optimize`."""

    judge: JudgeOptions
    policy: str = "playbook"
    limits: Limits = Limits()
    #: The number of independent agents on the task, which share the device.
    parallel: int = Field(default=1, ge=1, le=64)
    #: The policy whose best candidate is in the workspace at the start.
    seed_with: Literal["playbook"] | None = None
    #: The language model of the policy `llm`.
    llm: LanguageModelOptions | None = None
