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
    """Base of every configuration."""

    @classmethod
    def parse(cls, values: dict[str, Any], where: str = "") -> Self:
        """Raises UsageError that names the bad key or value, with a suggestion. `where` stands before every name, such
        as `speed.` for a part of a larger configuration."""
        for key in values:
            if key not in cls.model_fields:
                near = difflib.get_close_matches(key, cls.model_fields, n=1)
                hint = f"Did you mean {where + near[0]!r}?" if near else f"Known: {', '.join(cls.model_fields)}"
                raise UsageError(f"Unknown setting {where + key!r}", hint)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            said = first["msg"].removeprefix("Value error, ")
            raise UsageError(f"Setting {where}{'.'.join(map(str, first['loc']))}: {said}") from None


#: when timing rounds end before their budget: see `JudgeOptions.timing_stop`.
TimingStop = Literal["settled", "decided"]


class Regression(Configuration):
    """Inputs and weights on which a candidate once failed, by the seeds that draw them; `variant`: how the inputs were
    changed then (see `workers.inside.task.variants`)."""

    seed: int
    weights_seed: int
    variant: str | None = None


class JudgeOptions(Configuration):
    """How one task is judged. Times in seconds, memory in MiB."""

    device: Device
    precision: Precision = Precision.TF32
    reward_baseline: RewardBaseline = RewardBaseline.PUBLISHED
    trials: int = Field(default=5, ge=1)
    #: time that timing rounds may take; repetitions end earlier when the ratio's interval is within ±1 %.
    timing_budget_s: float = Field(default=10.0, gt=0)
    #: `settled`: rounds until every needed ratio is known to ±1 %. `decided`, for a search's turns: until each is
    #: plainly on one side of the milestone's 1/0.95, and known to ±5 % or a part of its distance to that.
    timing_stop: TimingStop = "settled"
    build_timeout_s: float = Field(default=600.0, gt=0)
    call_timeout_s: float = Field(default=120.0, gt=0)
    compile_baseline_timeout_s: float = Field(default=300.0, gt=0)
    host_memory_mib: int = Field(default=65536, gt=0)
    compiler_jobs: int = Field(default=2, ge=1)
    sandbox: Literal["auto", "full", "reduced"] = "auto"
    #: also times `torch.compile` with `max-autotune`.
    autotune: bool = False
    #: `wide`: besides the usual variants of the inputs, whole inputs at scales far from those that the task draws.
    variants: Literal["usual", "wide"] = "usual"
    #: earlier trials that somebody's candidate for this task failed, tried again.
    regressions: tuple[Regression, ...] = ()
    #: `triton`: a candidate without kernels/ whose model_new.py launches Triton kernels is judged too, as a comparison.
    comparison: Literal["triton"] | None = None
    #: fixes the judge's secret draws; only tests set it.
    seed: int | None = None

    def stopping(self, stop: TimingStop | None) -> JudgeOptions:
        """These, with another rule for the end of timing rounds; None: the same."""
        return self if stop is None else self.model_copy(update={"timing_stop": stop})


class Limits(Configuration):
    """What a run may spend; None: as much as it takes. Looked at before every turn: what a turn has begun, it ends."""

    turns: int = Field(default=60, ge=1)
    #: read and written by the model together.
    tokens: int | None = Field(default=None, ge=1)
    #: in the currency of the price table.
    cost: float | None = Field(default=None, gt=0)
    #: of the run itself, without the time between a kill and its resumption.
    wall_s: float | None = Field(default=None, gt=0)
    #: time of the judge, which holds the device: building, verifying, timing, and waiting for it where it is shared.
    judge_s: float | None = Field(default=None, gt=0)


class Price(Configuration):
    """Of one model, per million tokens, in any one currency. `cached_input` None: as `input`."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)


class LanguageModelOptions(Configuration):
    """A language model behind an endpoint. Written to disk with the run, so it never holds a key."""

    model: str = Field(min_length=1)
    base_url: str = "https://api.openai.com/v1"
    #: None: the server's own default.
    temperature: float | None = Field(default=None, ge=0, le=2)
    #: what one request and its answer may hold together; older turns are condensed before it is reached.
    context_tokens: int = Field(default=131_072, ge=8192)
    #: `keep`: stored in the transcript and sent back with later requests. `drop`: neither.
    reasoning: Literal["keep", "drop"] = "keep"
    #: `native`: the protocol's own tool calls. `tagged`: `<tool_call>` in the text, for models without.
    tools: Literal["native", "tagged"] = "native"
    protocol: Literal["openai", "litellm"] = "openai"
    price: Price | None = None
    #: most attempts at one request.
    attempts: int = Field(default=8, ge=1)
    #: longest silence of a server within an answer, in seconds.
    timeout_s: float = Field(default=600.0, gt=0)

    @field_validator("base_url")
    @classmethod
    def _holds_no_secret(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("give the endpoint as http(s)://HOST/…/v1")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("an endpoint's address holds no user, password or query; a key has a file of its own")
        return value.rstrip("/")


class OptimizeOptions(Configuration):
    """A run of `cuda-agent optimize`."""

    judge: JudgeOptions
    policy: str = "playbook"
    limits: Limits = Limits()
    #: independent agents on the task, which share the device.
    parallel: int = Field(default=1, ge=1, le=64)
    #: whose best candidate is in the workspace at the start.
    seed_with: Literal["playbook"] | None = None
    #: what the policy `llm` talks to.
    llm: LanguageModelOptions | None = None
