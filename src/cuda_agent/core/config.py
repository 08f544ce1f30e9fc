"""Typed configuration. An unknown key or value fails with the nearest known one."""

import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, ValidationError, field_validator

from cuda_agent.core.enums import Device, Precision, RewardBaseline
from cuda_agent.core.errors import UsageError
from cuda_agent.core.record import Record


@dataclass(frozen=True)
class Flag:
    """Makes a setting an option of the command line. Its type, bounds, choices and default are the field's own."""

    help: str
    #: The option's name. Empty: the field's name with dashes.
    name: str = ""
    metavar: str | None = None
    #: The setting is the option's number times this factor, such as 60 for minutes.
    factor: float = 1
    #: The setting's value if the option is given. None: the option takes a value.
    value: str | None = None
    #: The separator of several values in one option. Empty: the option is repeated.
    separator: str = ""
    #: A choice that the command replaces, such as `auto`. It is the option's default.
    replaced: str = ""


class Configuration(Record):
    """The base of every configuration."""

    # Panels of options have them as titles.
    model_config = ConfigDict(use_attribute_docstrings=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str = "", options: Mapping[str, str] | None = None) -> Self:
        """Returns the configuration. Raises UsageError that names the bad key or value, nested ones too.

        `where` is the file that holds the values. `options` are those settings, by their dotted keys, that came from
        options of the command line, with the names of these.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            found = error.errors()
            first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
            key = ".".join(map(str, first["loc"]))
            option = next((name for given, name in (options or {}).items() if f"{key}.".startswith(f"{given}.")), "")
            if first["type"] == "extra_forbidden":
                unknown = f"{option or where}: unknown" if option or where else "Unknown"
                raise UsageError(f"{unknown} setting {key!r}", _nearest(cls, first["loc"])) from None
            said = first["msg"].removeprefix("Value error, ")  # foreign text: pydantic's
            if first["type"] == "model_type":
                said = "it holds no settings"
            named = option or (f"{where}: {key}" if where else f"Setting {key}").removesuffix(": ")
            remedy = "Add it" if first["type"] == "missing" else "Correct it, or leave it out"
            raise UsageError(f"{named}: {said}", remedy) from None


def inner_configuration(kind: Any) -> type[Configuration] | None:
    """Returns the configuration in the annotation `X` or `X | None`."""
    choices = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    return next((one for one in choices if isinstance(one, type) and issubclass(one, Configuration)), None)


def _nearest(kind: type[Configuration], location: tuple[int | str, ...]) -> str:
    """Returns the remedy for an unknown key."""
    *outer, last = map(str, location)
    for name in outer:
        inner = inner_configuration(kind.model_fields[name].annotation) if name in kind.model_fields else None
        if inner is None:
            return "Leave it out"
        kind = inner
    near = difflib.get_close_matches(last, kind.model_fields, n=1)
    return f"Did you mean {'.'.join((*outer, near[0]))!r}?" if near else f"Known: {', '.join(kind.model_fields)}"


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
    scaled: bool = False
    """Whether the weights were scaled so that the signal of the inputs survives."""


#: Settings that several configurations have.
DeviceSetting = Annotated[Device, Flag("Where to run; auto is the GPU if there is one.", "--device", replaced="auto")]
SandboxSetting = Annotated[
    Literal["auto", "full", "reduced"], Flag("Isolation level; auto is the strongest that works here.", "--sandbox")
]


class JudgeOptions(Configuration):
    """The options of judging one task. Times are in seconds, memory in MiB."""

    device: DeviceSetting
    precision: Annotated[Precision, Flag("Arithmetic that is allowed inside float32 operators.")] = Precision.TF32
    reward_baseline: RewardBaseline = RewardBaseline.PUBLISHED
    trials: int = Field(default=5, ge=1)
    #: The rounds end earlier when the ratio's interval is within ±1 %.
    timing_budget_s: Annotated[
        float, Flag("Maximum time of one profile's timing rounds.", "--timing-budget", "SECONDS")
    ] = Field(default=10.0, gt=0)
    #: `settled` ends the rounds when every needed ratio is known to ±1 %. `decided`, for the turns of a search, ends
    #: them when each ratio is clearly on one side of the milestone's 1/0.95, and known to ±5 % or a part of its
    #: distance from it.
    timing_stop: Annotated[TimingStop, Flag("decided: until the faster is clear; settled: to ±1 %.")] = "settled"
    build_timeout_s: float = Field(default=600.0, gt=0)
    call_timeout_s: float = Field(default=120.0, gt=0)
    compile_baseline_timeout_s: float = Field(default=300.0, gt=0)
    host_memory_mib: int = Field(default=65536, gt=0)
    compiler_jobs: int = Field(default=2, ge=1)
    sandbox: SandboxSetting = "auto"
    #: Whether `torch.compile` with `max-autotune` is timed too.
    autotune: bool = False
    #: `wide` adds trials whose whole inputs have scales far from the task's own.
    variants: Literal["usual", "wide"] = "usual"
    #: Trials that earlier candidates for this task failed; they are tried again.
    regressions: tuple[Regression, ...] = ()
    #: `triton`: a candidate without kernels/ whose model_new.py launches Triton kernels is judged too, as a comparison.
    comparison: Annotated[
        Literal["triton"] | None,
        Flag("Judge Triton kernels too, as comparisons that are never promoted.", "--allow-triton", value="triton"),
    ] = None
    #: The seed of the judge's secret draws; only tests set it.
    seed: int | None = None

    def stopping(self, stop: TimingStop | None) -> "JudgeOptions":
        """Returns the options with another rule for the end of timing rounds; None keeps the rule."""
        return self if stop is None else self.model_copy(update={"timing_stop": stop})


class Limits(Configuration):
    """The limits of a run; None is no limit. They are checked before every turn, and a turn that has begun is
    completed."""

    turns: Annotated[int, Flag("Maximum number of the agent's turns on a task.")] = Field(default=60, ge=1)
    tokens: Annotated[int | None, Flag("Maximum tokens, read and written.", "--max-tokens")] = Field(default=None, ge=1)
    cost: Annotated[float | None, Flag("Maximum cost, by the price table.", "--max-cost")] = Field(default=None, gt=0)
    #: It is in seconds and excludes the time between a kill and its resumption.
    wall_s: Annotated[float | None, Flag("Maximum time of the run.", "--max-minutes", "MINUTES", factor=60)] = Field(
        default=None, gt=0
    )
    #: It is in seconds: building, verifying, timing, and waiting for a shared device.
    judge_s: Annotated[
        float | None, Flag("Maximum time of the judge on the device.", "--max-gpu-minutes", "MINUTES", factor=60)
    ] = Field(default=None, gt=0)


class Price(Configuration):
    """The price of one model per million tokens, in any currency. `cached_input` is by default the same as `input`."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)


#: OpenAI's own endpoint.
OPENAI_URL = "https://api.openai.com/v1"


#: how a language model is spoken to (agent/dialogues): with the agent's tools, or its answer is a candidate.
DialogueKind = Literal["tools", "short", "files"]


class LanguageModelOptions(Configuration):
    """A language model behind an endpoint. The run writes these options to disk, so they never contain a key."""

    model: Annotated[str, Flag("Name of the model at the endpoint.")] = Field(min_length=1)
    base_url: Annotated[str, Flag("Endpoint; else $OPENAI_BASE_URL, else OpenAI's.", metavar="URL")] = OPENAI_URL
    temperature: Annotated[float | None, Flag("Temperature; else the server's.")] = Field(default=None, ge=0, le=2)
    #: Older turns are condensed before the limit.
    context_tokens: Annotated[int, Flag("Maximum tokens, request and answer.")] = Field(default=131_072, ge=8192)
    reasoning: Annotated[Literal["keep", "drop"], Flag("keep: store reasoning and send it on; drop: neither.")] = "keep"
    tools: Annotated[Literal["native", "tagged"], Flag("native tool calls, or tagged text in the answer.")] = "native"
    dialogue: Annotated[
        DialogueKind,
        Flag("tools: the agent's; for small models, an answer is short: one kernel, or files: all of them."),
    ] = "tools"
    protocol: Annotated[Literal["openai", "litellm"], Flag("OpenAI's protocol, or litellm for others.")] = "openai"
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
            raise ValueError("an endpoint has no user, password or query; keep the key in its own file")
        return value.rstrip("/")


class OptimizeOptions(Configuration):
    """The options of `cuda-agent optimize`."""

    judge: JudgeOptions
    policy: Annotated[str, Flag("playbook, llm, files:DIR, or the folder of a trained checkpoint.")] = "playbook"
    limits: Limits = Limits()
    parallel: Annotated[int, Flag("Agents on the task at once; the best result counts.")] = Field(
        default=1, ge=1, le=64
    )
    seed_with: Annotated[Literal["playbook"] | None, Flag("Start from the best candidate of this policy.")] = None
    winners: Annotated[
        Path | None,
        Flag("Database of the playbook's fastest plans: a search begins with one and adds its own.", metavar="FILE"),
    ] = None
    llm: LanguageModelOptions | None = Field(default=None, description="A language model (--policy llm)")
