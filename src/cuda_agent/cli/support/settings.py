"""The options of a command from the fields of its configuration, and `--config FILE` with the same settings. Completes
them: device, policy, language model."""

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cuda_agent.agent.device import resolve_device
from cuda_agent.agent.policies.registry import policy_name
from cuda_agent.cli.support.output import CommandAnswer, answers
from cuda_agent.core.config import Configuration, Flag, inner_configuration
from cuda_agent.core.enums import Device
from cuda_agent.core.errors import UsageError
from cuda_agent.core.settings import Settings
from cuda_agent.llm.keys import default_base_url
from cuda_agent.llm.prices import load_price

Command = Callable[..., int]
ConfigArg = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings: TOML, YAML or JSON (docs/runs.md); options override it."),
]
#: Options that several commands share and that are no settings of a configuration.
KeyFileArg = Annotated[
    Path | None, typer.Option("--api-key-file", help="File with the API key; by default the environment has it.")
]
PricesArg = Annotated[
    Path | None, typer.Option("--prices", metavar="FILE", help="Table of models' prices per million tokens.")
]
TrainingArg = Annotated[
    Path, typer.Option("--config", metavar="FILE", help="The training's settings (TOML or YAML), or a preset's name.")
]
SetArg = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as ppo.steps=20 (repeat it)."),
]

#: typer's names -> those of a field's constraints.
_BOUNDS = (("min", "ge"), ("max", "le"))


def command_group(name: str, about: str, epilog: str | None = None) -> typer.Typer:
    """Returns a group of commands. Without arguments it prints its help; errors are printed by the caller."""
    return typer.Typer(
        name=name, help=about, epilog=epilog, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )


@dataclass(frozen=True)
class _Option:
    """One field as an option."""

    key: str
    field: FieldInfo
    flag: Flag
    panel: str | None

    @property
    def name(self) -> str:
        return self.flag.name or "--" + self.key.rpartition(".")[2].replace("_", "-")

    @property
    def kind(self) -> Any:
        """Its type, without None."""
        parts = typing.get_args(self.field.annotation)
        return parts[0] if parts[1:] == (type(None),) else self.field.annotation

    def annotation(self, default: Any) -> Any:
        """What typer makes its option of. Bounds that exclude their end are left to the configuration."""
        found = ((name, getattr(one, end, None)) for one in self.field.metadata for name, end in _BOUNDS)
        bounds = {name: bound for name, bound in found if bound is not None}
        option = typer.Option(
            self.name, metavar=self.flag.metavar, help=self.flag.help, show_default=self._shown(default),
            rich_help_panel=self.panel, **bounds,
        )  # fmt: skip
        return Annotated[self._typed() | None, option]

    def _typed(self) -> Any:
        kind = self.kind
        if self.flag.value is not None or self.flag.separator:
            return str if self.flag.separator else bool
        choices = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            choices = tuple(kind)
        if choices:
            return StrEnum("Choice", {str(one): str(one) for one in (self.flag.replaced, *choices) if one})
        if typing.get_origin(kind) is dict or typing.get_args(kind)[1:] == (...,):
            return list[str]
        return kind

    def _shown(self, default: Any) -> str | bool:
        if default is PydanticUndefined:
            return self.flag.replaced or False
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        return False if shown in (None, "") else str(shown)

    def value(self, given: Any) -> Any:
        """The setting that the option says. Raises UsageError for a pair that isn't one."""
        if self.flag.value is not None:
            return self.flag.value
        if self.flag.separator:
            return [word.strip() for word in given.split(self.flag.separator) if word.strip()]
        if self.flag.factor != 1:
            return given * self.flag.factor
        if typing.get_origin(self.kind) is dict:
            pairs = [text.partition("=") for text in given]
            if not all(equals for _, equals, _ in pairs):
                raise UsageError(f"{self.name}: {' '.join(given)} lacks a =", f"Give it as {self.flag.metavar}")
            return {name: value for name, _, value in pairs}
        return given.value if isinstance(given, StrEnum) else given


def put_device(settings: Settings, key: str = "device") -> None:
    """Chooses the device, where `auto` is said or none. Raises UsageError, DeviceError where something is missing."""
    choice = settings.get(key, "auto")
    if choice in ("auto", *Device):
        settings.put(key, resolve_device(choice))


def _options(kind: type[Configuration], prefix: str = "", panel: str | None = None) -> Iterator[_Option]:
    for name, field in kind.model_fields.items():
        flag = next((one for one in field.metadata if isinstance(one, Flag)), None)
        inner = inner_configuration(field.annotation)
        if flag is not None:
            yield _Option(prefix + name, field, flag, panel)
        elif inner is not None:
            yield from _options(inner, f"{prefix}{name}.", field.description or panel)


def with_settings(
    kind: type[Configuration],
    *,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    base: Mapping[str, Any] | None = None,
    defaults: bool = True,
    file: bool = True,
) -> Callable[[Callable[..., int] | Callable[..., CommandAnswer]], Command]:
    """Gives a command those options that the fields of `kind` have, and `--config`. Its first parameter gets the
    configuration, or the settings where it has the type `Settings` and completes them. A command that returns a
    CommandAnswer is one of `answers` too.

    `only` and `without` name fields by their dotted keys. `base` holds other defaults than the fields have; `defaults`
    is False where they are what the command finds. `file` is False for a command that takes no `--config`.
    """
    chosen = (one for one in _options(kind) if one.key not in without and (not only or one.key in only))
    options = {one.key.replace(".", "__"): one for one in chosen}
    usual = Settings(values=base or {})
    annotations = {"config": ConfigArg} if file else {}
    for name, one in options.items():
        annotations[name] = one.annotation(usual.get(one.key, one.field.default) if defaults else None)

    def decorate(given_command: Callable[..., Any]) -> Command:
        answering = inspect.signature(given_command, eval_str=True).return_annotation is CommandAnswer
        command: Command = answers(given_command) if answering else given_command
        first, *own = inspect.signature(command, eval_str=True).parameters.values()

        @functools.wraps(command)
        def wrapped(**given: Any) -> int:
            settings = Settings(given.pop("config", None) if file else None).over(usual.values)
            for name, option in options.items():
                value = given.pop(name)
                if value is not None and value is not False and value != []:
                    settings.put(option.key, option.value(value), option.name)
            if first.annotation is Settings:
                return command(settings, **given)
            for option in options.values():
                if option.flag.replaced:
                    put_device(settings, option.key)
            return command(settings.parse(kind), **given)

        only_by_name = inspect.Parameter.KEYWORD_ONLY
        derived = (inspect.Parameter(name, only_by_name, default=None, annotation=a) for name, a in annotations.items())
        wrapped.__signature__ = inspect.Signature((*own, *derived))  # type: ignore[attr-defined]
        wrapped.__annotations__ = {one.name: one.annotation for one in own} | annotations
        return wrapped

    return decorate


def complete_run(settings: Settings, prices: Path | None, prefix: str = "") -> None:
    """Completes the settings of an `OptimizeOptions`, which stand under `prefix`. Raises UsageError for an unknown
    policy and what `complete_model` refuses, DeviceError."""
    put_device(settings, f"{prefix}judge.device")
    policy = str(settings.get(f"{prefix}policy", "playbook"))
    complete_model(settings, f"{prefix}llm", "policy", policy)
    if prices is not None and policy == "llm":
        price = load_price(prices, str(settings.get(f"{prefix}llm.model")))
        settings.put(f"{prefix}llm.price", price.model_dump())
    costs = policy == "llm" and settings.get(f"{prefix}limits.cost") is not None
    if costs and settings.get(f"{prefix}llm.price") is None:
        raise UsageError("--max-cost needs prices", "Give --prices FILE: MODEL: {input: 1.25, output: 10}")
    settings.put(f"{prefix}policy", policy_name(policy))


def complete_model(settings: Settings, key: str, role: str, chosen: str) -> None:
    """Removes the language model's settings unless it is chosen for the role (`policy`, `composer`). Raises UsageError
    if it is and has no name, or if it isn't and an option names it."""
    if chosen != "llm":
        if not {f"{key}.model", f"{key}.base_url"}.isdisjoint(settings.options):
            raise UsageError("--model and --base-url are for a language model", f"Add --{role} llm")
        settings.put(key, None)
        return
    if settings.get(f"{key}.model") is None:
        raise UsageError(f"The {role} llm needs a model", "Give --model, and --base-url where it isn't OpenAI's")
    settings.put(f"{key}.base_url", settings.get(f"{key}.base_url") or default_base_url())
