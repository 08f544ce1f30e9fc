"""Typed configuration. An unknown key or value fails with the nearest known one."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator

from cuda_agent.core.enums import Baseline, Device, Precision
from cuda_agent.core.errors import UsageError
from cuda_agent.core.record import Record


@dataclass(frozen=True)
class Flag:
    """Makes a setting an option of the command line. Its type, bounds, choices and default are the field's own."""

    help: str
    #: of the option. Empty: the field's name, with dashes.
    name: str = ""
    metavar: str | None = None
    #: a number of the option times this is the setting, such as 60 for minutes.
    factor: float = 1
    #: the setting's value if the option is given. None: the option takes a value.
    value: str | None = None
    #: what stands between several values of one option. Empty: the option is repeated.
    separator: str = ""
    #: a choice that the command replaces, such as `auto`. It is the default.
    replaced: str = ""


class Configuration(Record):
    """Base of every configuration."""

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


#: when timing rounds end before their budget: see `JudgeOptions.timing_stop`.
TimingStop = Literal["settled", "decided"]


class Regression(Configuration):
    """Inputs and weights on which a candidate once failed, by the seeds that draw them; `variant`: how the inputs were
    changed then (see `workers.inside.task.variants`)."""

    seed: int
    weights_seed: int
    variant: str | None = None


#: settings that several configurations have.
DeviceSetting = Annotated[Device, Flag("Where to run; auto is the GPU if there is one.", "--device", replaced="auto")]
SandboxSetting = Annotated[
    Literal["auto", "full", "reduced"], Flag("Isolation; auto is the strongest that works here.", "--sandbox")
]


class JudgeOptions(Configuration):
    """How one task is judged. Times in seconds, memory in MiB."""

    device: DeviceSetting
    precision: Annotated[Precision, Flag("Arithmetic that is allowed inside float32 operators.")] = Precision.TF32
    reward_baseline: Baseline = Baseline.PUBLISHED
    trials: int = Field(default=5, ge=1)
    #: repetitions end earlier when the ratio's interval is within ±1 %.
    timing_budget_s: Annotated[
        float, Flag("Most time that one profile's rounds take.", "--timing-budget", "SECONDS")
    ] = Field(default=10.0, gt=0)
    #: `settled`: rounds until every needed ratio is known to ±1 %. `decided`, for a search's turns: until each is
    #: plainly on one side of the milestone's 1/0.95, and known to ±5 % or a part of its distance to that.
    timing_stop: Annotated[TimingStop, Flag("decided: until it is plain which is faster; settled: to ±1 %.")] = (
        "settled"
    )
    build_timeout_s: float = Field(default=600.0, gt=0)
    call_timeout_s: float = Field(default=120.0, gt=0)
    compile_baseline_timeout_s: float = Field(default=300.0, gt=0)
    host_memory_mib: int = Field(default=65536, gt=0)
    compiler_jobs: int = Field(default=2, ge=1)
    sandbox: SandboxSetting = "auto"
    #: also times `torch.compile` with `max-autotune`.
    autotune: bool = False
    #: `wide`: besides the usual variants of the inputs, whole inputs at scales far from those that the task draws.
    variants: Literal["usual", "wide"] = "usual"
    #: earlier trials that somebody's candidate for this task failed, tried again.
    regressions: tuple[Regression, ...] = ()
    #: `triton`: a candidate without kernels/ whose model_new.py launches Triton kernels is judged too, as a comparison.
    comparison: Annotated[
        Literal["triton"] | None,
        Flag("Judge Triton kernels too, as comparisons that are never promoted.", "--allow-triton", value="triton"),
    ] = None
    #: fixes the judge's secret draws; only tests set it.
    seed: int | None = None

    def stopping(self, stop: TimingStop | None) -> JudgeOptions:
        """These, with another rule for the end of timing rounds; None: the same."""
        return self if stop is None else self.model_copy(update={"timing_stop": stop})


class Limits(Configuration):
    """What a run may spend; None: as much as it takes. Looked at before every turn: what a turn has begun, it ends."""

    turns: Annotated[int, Flag("Most turns of the agent on a task, in all.")] = Field(default=60, ge=1)
    tokens: Annotated[int | None, Flag("Most tokens that the model reads and writes.", "--max-tokens")] = Field(
        default=None, ge=1
    )
    cost: Annotated[float | None, Flag("Most that the model may cost, by its price table.", "--max-cost")] = Field(
        default=None, gt=0
    )
    #: in seconds, without the time between a kill and its resumption.
    wall_s: Annotated[float | None, Flag("Most time of the run.", "--max-minutes", "MINUTES", factor=60)] = Field(
        default=None, gt=0
    )
    #: in seconds: building, verifying, timing, and waiting for the device where it is shared.
    judge_s: Annotated[
        float | None, Flag("Most time of the judge, which holds the device.", "--max-gpu-minutes", "MINUTES", factor=60)
    ] = Field(default=None, gt=0)


class Price(Configuration):
    """Of one model, per million tokens, in any one currency. `cached_input` None: as `input`."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)


#: OpenAI's own endpoint.
OPENAI_URL = "https://api.openai.com/v1"


class LanguageModelOptions(Configuration):
    """A language model behind an endpoint. Written to disk with the run, so it never holds a key."""

    model: Annotated[str, Flag("Its name at the endpoint.")] = Field(min_length=1)
    base_url: Annotated[
        str, Flag("Endpoint of the OpenAI protocol; else $OPENAI_BASE_URL, else OpenAI's.", metavar="URL")
    ] = OPENAI_URL
    temperature: Annotated[float | None, Flag("Else the server's.")] = Field(default=None, ge=0, le=2)
    #: older turns are condensed before it is reached.
    context_tokens: Annotated[int, Flag("Most of request and answer together.")] = Field(default=131_072, ge=8192)
    #: `keep`: stored in the transcript and sent back with later requests. `drop`: neither.
    reasoning: Annotated[Literal["keep", "drop"], Flag("Keep it in transcript and requests, or drop it.")] = "keep"
    tools: Annotated[Literal["native", "tagged"], Flag("Native calls, or tagged text for models without.")] = "native"
    protocol: Annotated[Literal["openai", "litellm"], Flag("litellm speaks others than OpenAI's.")] = "openai"
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
    policy: Annotated[str, Flag("playbook, llm, files:DIR, or the folder of a trained checkpoint.")] = "playbook"
    limits: Limits = Limits()
    parallel: Annotated[int, Flag("Independent agents on the task, which share the device; the best counts.")] = Field(
        default=1, ge=1, le=64
    )
    seed_with: Annotated[Literal["playbook"] | None, Flag("Whose best candidate is in the workspace at the start.")] = (
        None
    )
    llm: LanguageModelOptions | None = Field(default=None, description="A language model (--policy llm)")
