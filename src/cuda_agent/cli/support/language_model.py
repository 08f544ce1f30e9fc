"""Options of the policy `llm`, and the settings that they make."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cuda_agent.core.config import LanguageModelOptions
from cuda_agent.core.errors import UsageError
from cuda_agent.llm.keys import default_base_url
from cuda_agent.llm.prices import load_price

_PANEL = "A language model (--policy llm)"


class ReasoningOption(StrEnum):
    """What becomes of a model's reasoning."""

    KEEP = "keep"
    DROP = "drop"


class ToolsOption(StrEnum):
    """How a model calls tools."""

    NATIVE = "native"
    TAGGED = "tagged"


class ProtocolOption(StrEnum):
    """What carries the requests."""

    OPENAI = "openai"
    LITELLM = "litellm"


ModelArg = Annotated[str | None, typer.Option("--model", help="Its name at the endpoint.", rich_help_panel=_PANEL)]
BaseUrlArg = Annotated[
    str | None,
    typer.Option(
        "--base-url", metavar="URL", rich_help_panel=_PANEL,
        help="Endpoint of the OpenAI protocol; else $OPENAI_BASE_URL, else OpenAI's.",
    ),
]  # fmt: skip
TemperatureArg = Annotated[
    float | None, typer.Option("--temperature", min=0, max=2, help="Else the server's.", rich_help_panel=_PANEL)
]
ContextArg = Annotated[
    int, typer.Option("--context-tokens", min=8192, help="Most of request and answer.", rich_help_panel=_PANEL)
]
ReasoningArg = Annotated[
    ReasoningOption,
    typer.Option("--reasoning", help="Keep it in transcript and requests, or drop it.", rich_help_panel=_PANEL),
]
ToolsArg = Annotated[
    ToolsOption,
    typer.Option("--tools", help="Native calls, or tagged text for models without.", rich_help_panel=_PANEL),
]
PricesArg = Annotated[
    Path | None,
    typer.Option("--prices", metavar="FILE", help="Table of prices per million tokens.", rich_help_panel=_PANEL),
]
ProtocolArg = Annotated[
    ProtocolOption, typer.Option("--protocol", help="litellm speaks others than OpenAI's.", rich_help_panel=_PANEL)
]


def language_model(
    policy: str, model: str | None, base_url: str | None, prices: Path | None, max_cost: float | None, **options: Any
) -> LanguageModelOptions | None:
    """None where the policy is another. `options`: those of `LanguageModelOptions` besides.

    Raises UsageError: no model, a model for another policy, a limit of cost without prices, a bad table or address.
    """
    if policy != "llm":
        if model is not None or base_url is not None:
            raise UsageError("--model and --base-url are for a language model", "Add --policy llm")
        return None
    if model is None:
        raise UsageError("The policy llm needs a model", "Give --model, and --base-url where it isn't OpenAI's")
    if max_cost is not None and prices is None:
        raise UsageError("--max-cost needs prices", "Give --prices FILE: MODEL: {input: 1.25, output: 10}")
    price = None if prices is None else load_price(prices, model)
    values = {"model": model, "base_url": base_url or default_base_url(), "price": price, **options}
    return LanguageModelOptions.parse(values)
