"""cuda-agent tasks compose"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cuda_agent.cli.support.language_model import BaseUrlArg, ModelArg, ProtocolArg, ProtocolOption, TemperatureArg
from cuda_agent.cli.support.options import DebugArg, JsonArg, KeyFileArg
from cuda_agent.cli.support.output import ProgressView, emit, say
from cuda_agent.core.config import LanguageModelOptions
from cuda_agent.core.errors import UsageError
from cuda_agent.llm.client import make_client, prepare
from cuda_agent.llm.keys import default_base_url
from cuda_agent.tasks.compose.builtin import BuiltinComposer
from cuda_agent.tasks.compose.language_model import LanguageModelComposer, RecordedAnswers
from cuda_agent.tasks.compose.rates import rates_for
from cuda_agent.tasks.compose.run import (
    Composer,
    ComposeSettings,
    compose,
    digest_of,
    library_versions,
    read_seeds,
    runs_with,
    settle,
)
from cuda_agent.tasks.compose.sizing import Target
from cuda_agent.tasks.store import CANDIDATES_FILE


class ComposerOption(StrEnum):
    """Who composes."""

    BUILTIN = "builtin"
    LLM = "llm"


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data set, with its seeds.")],
    count: Annotated[int, typer.Option("--count", min=1, help="Candidates that the folder shall hold.")] = 6000,
    seed: Annotated[int, typer.Option("--seed", help="Of the random choices.")] = 0,
    window_ms: Annotated[
        tuple[float, float], typer.Option("--window-ms", metavar="LOW HIGH", help="Predicted eager time.")
    ] = (1.5, 70.0),
    memory_gb: Annotated[
        float, typer.Option("--memory-gb", help="Most that one pass may hold: inputs, weights, all outputs.")
    ] = 8.0,
    stack: Annotated[str, typer.Option("--stack", metavar="GPU", help="For which times are predicted.")] = "H200",
    versions: Annotated[
        list[str] | None,
        typer.Option("--runs-with", metavar="LIBRARY=VERSION", help="Leave out seeds that need a newer one."),
    ] = None,
    composer: Annotated[
        ComposerOption, typer.Option("--composer", help="builtin, or llm: a language model (give --model).")
    ] = ComposerOption.BUILTIN,
    model: ModelArg = None,
    base_url: BaseUrlArg = None,
    api_key_file: KeyFileArg = None,
    temperature: TemperatureArg = None,
    protocol: ProtocolArg = ProtocolOption.OPENAI,
    as_json: JsonArg = False,
    debug: DebugArg = False,
) -> int:
    """Compose candidates from the folder's seeds; goes on where the folder's file ends."""
    if not 0 < window_ms[0] < window_ms[1] or memory_gb <= 0:
        raise UsageError("The window or the memory is impossible", "Give --window-ms LOW HIGH with 0 < LOW < HIGH")
    asked = _versions(versions or ())
    seeds = runs_with(read_seeds(directory), asked)
    target = Target(low_ms=window_ms[0], high_ms=window_ms[1], memory_gb=memory_gb, rates=rates_for(stack))
    chosen: Composer
    with ProgressView("tasks compose") as view:
        if composer is ComposerOption.LLM:
            options = _options(model, base_url, temperature, protocol)
            client = make_client(options, prepare(options, api_key_file), lambda text: view("model", text))
            answers = RecordedAnswers(directory, options.model, client)
            chosen = LanguageModelComposer(seeds, seed, target, answers)
        else:
            if model is not None or base_url is not None:
                raise UsageError("--model and --base-url are for a language model", "Add --composer llm")
            chosen = BuiltinComposer(seeds, seed, target)
        settings = ComposeSettings(
            composer=chosen.name, seed=seed, target=target, seeds_digest=digest_of(seeds), model=model,
            library_versions=library_versions(seeds), runs_with=asked,
        )  # fmt: skip
        settle(directory, settings)
        made = compose(directory, chosen, count, lambda text: view("compose", text))
    if as_json:
        emit(json.dumps({"found": made.found, "added": made.added, "skipped": made.skipped}, indent=1))
    else:
        for number, reason in made.skipped.items():
            say(f"{number}: {reason}")
        say(f"{made.found} tasks were there, {made.added} added: {directory / CANDIDATES_FILE}")
    return 0


def _versions(said: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in said:
        library, equals, version = text.partition("=")
        if not equals or library not in ("torch", "transformers"):
            raise UsageError(f"--runs-with {text!r} names no library and version", "Give it as in torch=2.11")
        found[library] = version
    return found


def _options(
    model: str | None, base_url: str | None, temperature: float | None, protocol: ProtocolOption
) -> LanguageModelOptions:
    if model is None:
        raise UsageError("The composer llm needs a model", "Give --model, and --base-url where it isn't OpenAI's")
    values = {"model": model, "base_url": base_url or default_base_url(), "temperature": temperature}
    return LanguageModelOptions.parse({**values, "protocol": protocol.value})
