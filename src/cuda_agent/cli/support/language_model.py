"""Completes the settings of a run: device, policy, language model."""

from __future__ import annotations

from pathlib import Path

from cuda_agent.agent.policies.registry import policy_name
from cuda_agent.cli.support.settings import put_device
from cuda_agent.core.errors import UsageError
from cuda_agent.core.settings import Settings
from cuda_agent.llm.keys import default_base_url
from cuda_agent.llm.prices import load_price


def complete_run(settings: Settings, prices: Path | None, prefix: str = "") -> None:
    """Completes the settings of an `OptimizeOptions`, which stand under `prefix`.

    Raises UsageError for an unknown policy and what `complete_model` refuses, DeviceError.
    """
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
    """Removes the language model's settings unless it is chosen for the role (`policy`, `composer`).

    Raises UsageError if it is and has no name, or if it isn't and an option names it.
    """
    if chosen != "llm":
        if not {f"{key}.model", f"{key}.base_url"}.isdisjoint(settings.options):
            raise UsageError("--model and --base-url are for a language model", f"Add --{role} llm")
        settings.put(key, None)
        return
    if settings.get(f"{key}.model") is None:
        raise UsageError(f"The {role} llm needs a model", "Give --model, and --base-url where it isn't OpenAI's")
    settings.put(f"{key}.base_url", settings.get(f"{key}.base_url") or default_base_url())
