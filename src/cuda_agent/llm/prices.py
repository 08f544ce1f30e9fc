"""Prices from a table that the user gives. No price is estimated."""

from pathlib import Path
from typing import Any

from cuda_agent.core.config import LanguageModelOptions, Price
from cuda_agent.core.errors import UsageError
from cuda_agent.core.settings import read_settings
from cuda_agent.llm.chat import Reply, Usage

_ANY = "*"
_FORM = "Write one line for each model, per million tokens: MODEL: {input: 1.25, output: 10, cached_input: 0.125}"


def load_price(path: Path, model: str) -> Price:
    """Returns the price of `model` from a table of model -> {input, output, cached_input}; `*` is any other model.
    Raises UsageError: the file can't be read, isn't such a table, or doesn't name the model."""
    table = read_settings(path)
    if not all(isinstance(row, dict) for row in table.values()):
        raise UsageError(f"The price table {path} isn't one", _FORM)
    row = table.get(model, table.get(_ANY))
    if row is None:
        named = ", ".join(map(str, table)) or "none"
        raise UsageError(f"The price table {path} doesn't name {model!r} (it names: {named})", _FORM)
    return Price.parse(row, str(path))


def cost_of(usage: Usage, price: Price) -> float:
    """Returns Σ tokens × price / 10⁶ in the table's currency. Cached tokens have their own price."""
    cached_price = price.input if price.cached_input is None else price.cached_input
    read = (usage.read - usage.cached) * price.input + usage.cached * cached_price
    return (read + usage.written * price.output) / 1e6


def spent(reply: Reply, options: LanguageModelOptions) -> dict[str, Any]:
    """Returns the fields of a move that count tokens and money."""
    usage = reply.usage
    return {
        "tokens_in": usage.read,
        "tokens_out": usage.written,
        "tokens_cached": usage.cached,
        "tokens_estimated": usage.estimated,
        "cost": None if options.price is None else cost_of(usage, options.price),
    }
