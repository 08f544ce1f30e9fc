"""Options come from the fields of a configuration, and `--config FILE` holds the same settings. A refusal names what
the user wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from cuda_agent.bench.options import DEFAULTS, BenchOptions
from cuda_agent.cli import main
from cuda_agent.cli.main import run
from cuda_agent.cli.support import settings as derived
from cuda_agent.cli.support.settings import complete_run, with_settings
from cuda_agent.core.config import Configuration, JudgeOptions, OptimizeOptions
from cuda_agent.core.enums import Device
from cuda_agent.core.settings import Settings
from cuda_agent.tasks.filter.options import FilterRunOptions
from cuda_agent.tasks.options import ComposeRunOptions, CrawlOptions, DecontaminateOptions

Parsed = Callable[..., Any]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Parsed:
    """Runs a command that only keeps its configuration; returns that, or the exit code of a refusal."""

    def parse(kind: type[Configuration], *arguments: str, file: str | None = None, **choice: Any) -> Any:
        found: list[Any] = []

        @with_settings(kind, **choice)
        def command(options: Settings) -> int:
            if kind is OptimizeOptions or kind is BenchOptions:
                complete_run(options, None, "run." if kind is BenchOptions else "")
            elif "device" in kind.model_fields:
                derived.put_device(options)
            found.append(options.parse(kind))
            return 0

        app = typer.Typer()
        app.command("try")(command)
        app.command("other")(lambda: None)
        monkeypatch.setattr(main, "app", app)
        code = run(["try", *arguments, *(["--config", file] if file else [])])
        return found[0] if found else code

    monkeypatch.chdir(tmp_path)
    return parse


def test_options_reach_nested_fields(parsed: Parsed) -> None:
    words = "--device cpu --precision fp32 --timing-budget 3 --allow-triton --turns 7 --max-minutes 2 --parallel 2"
    options = parsed(OptimizeOptions, *words.split())
    assert (options.judge.device, options.judge.precision, options.judge.timing_budget_s) == ("cpu", "fp32", 3)
    assert options.judge.comparison == "triton"
    assert (options.limits.turns, options.limits.wall_s, options.parallel) == (7, 120, 2)


@pytest.mark.parametrize(
    ("kind", "arguments", "field", "value"),
    [
        (BenchOptions, ["--levels", "1, 2", "--device", "cpu"], "levels", ("1", "2")),
        (BenchOptions, ["--stop-after", "30", "--device", "cpu"], "stop_after_s", 30),
        (CrawlOptions, ["--library", "torch"], "libraries", ("torch",)),
        (CrawlOptions, [], "libraries", ("torch", "transformers")),
        (ComposeRunOptions, ["--runs-with", "torch=2.11", "--runs-with", "transformers=5"], "runs_with",
         {"torch": "2.11", "transformers": "5"}),
        (FilterRunOptions, ["--window-ms", "0", "9", "--device", "cpu"], "window_ms", (0, 9)),
        (DecontaminateOptions, ["--against", "a", "--against", "b", "--device", "cpu"], "against", ("a", "b")),
    ],
)  # fmt: skip
def test_forms_of_options(parsed: Parsed, kind: type, arguments: list[str], field: str, value: object) -> None:
    assert getattr(parsed(kind, *arguments, base=DEFAULTS if kind is BenchOptions else None), field) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.toml", "policy = 'playbook'\n[judge]\ndevice = 'cpu'\ntrials = 3\n[limits]\nturns = 9\ntokens = 5\n"),
        ("run.yaml", "judge: {device: cpu, trials: 3}\nlimits: {turns: 9, tokens: 5}\n"),
        ("run.json", '{"judge": {"device": "cpu", "trials": 3}, "limits": {"turns": 9, "tokens": 5}}'),
    ],
)
def test_the_command_line_wins_over_the_file(parsed: Parsed, name: str, text: str) -> None:
    Path(name).write_text(text)
    options = parsed(OptimizeOptions, "--turns", "4", file=name)
    assert (options.judge.device, options.judge.trials) == (Device.CPU, 3)
    assert (options.limits.turns, options.limits.tokens) == (4, 5)


def test_the_file_wins_over_a_command_s_own_defaults(parsed: Parsed) -> None:
    Path("b.toml").write_text("[run.judge]\ndevice = 'cpu'\ntiming_stop = 'settled'\n")
    judge = parsed(BenchOptions, file="b.toml", base=DEFAULTS).run.judge
    assert (judge.timing_budget_s, judge.timing_stop) == (2.0, "settled")
    assert DEFAULTS == {"run": {"judge": {"timing_budget_s": 2.0, "timing_stop": "decided"}}}


def test_the_configuration_that_a_run_saves_is_such_a_file(parsed: Parsed) -> None:
    first = parsed(OptimizeOptions, "--device", "cpu", "--turns", "3", "--allow-triton")
    Path("config.json").write_text(json.dumps(first.model_dump(mode="json")))
    assert parsed(OptimizeOptions, file="config.json") == first


@pytest.mark.parametrize(
    ("arguments", "text", "says"),
    [
        (["--timing-budget", "0"], "", "--timing-budget: Input should be greater than 0. Correct it"),
        (["--precision", "x"], "", "Invalid value for '--precision': 'x' is not one of 'fp32', 'tf32', 'bf16', 'fp16'"),
        (["--max-gpu-minutes", "-1"], "", "--max-gpu-minutes: Input should be greater than 0. Correct it"),
        ([], "[judge]\ntrials = 0\n", "f.toml: judge.trials: Input should be greater than or equal to 1. Correct it"),
        ([], "[judge]\ntrails = 1\n", "f.toml: unknown setting 'judge.trails'. Did you mean 'judge.trials'?"),
        ([], "polisy = 'llm'\n", "f.toml: unknown setting 'polisy'. Did you mean 'policy'?"),
        ([], "limits = 3\n", "f.toml: limits: it holds no settings. Correct it"),
        (["--turns", "4"], "limits = 3\n", "f.toml: limits: it holds no settings. Correct it"),
        ([], "[judge]\ndevice = 'tpu'\n", "f.toml: judge.device: Input should be 'cuda' or 'cpu'. Correct it"),
        (["--timing-budget", "-2"], "[judge]\ntrials = 2\n", "--timing-budget: Input should be greater than 0"),
        ([], "judge = [\n", "f.toml is not TOML: "),
    ],
)
def test_a_refusal_names_what_the_user_wrote(
    parsed: Parsed, arguments: list[str], text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("f.toml").write_text(text)
    device = [] if "device" in text else ["--device", "cpu"]
    assert parsed(OptimizeOptions, *arguments, *device, file="f.toml") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"error: {says}")


@pytest.mark.parametrize(
    ("kind", "arguments", "says"),
    [
        (FilterRunOptions, ["--window-ms", "9", "1"], "--window-ms: give LOW and HIGH with LOW < HIGH"),
        (ComposeRunOptions, ["--window-ms", "0", "1"], "--window-ms: give LOW and HIGH with 0 < LOW < HIGH"),
        (ComposeRunOptions, ["--runs-with", "torch"], "--runs-with: torch lacks a =. Give it as LIBRARY=VERSION"),
        (ComposeRunOptions, ["--runs-with", "jax=1"], "--runs-with: "),
        (CrawlOptions, ["--library", "jax"], "--library: Input should be 'torch' or 'transformers'"),
        (JudgeOptions, ["--config", "none.toml"], "Can't read none.toml: No such file or directory. Check the path"),
    ],
)
def test_refusals_of_other_commands(
    parsed: Parsed, kind: type, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    device = ["--device", "cpu"] if "device" in kind.model_fields else []
    assert parsed(kind, *arguments, *device) == 2
    assert capsys.readouterr().err.startswith(f"error: {says}")


def test_a_changed_setting_of_a_training_is_named_as_it_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "check", "--config", "pocket", "--set", "ppo.stepz=1"]) == 2
    assert "--set ppo.stepz: unknown setting 'ppo.stepz'. Did you mean 'ppo.steps'?" in capsys.readouterr().err
    assert run(["train", "check", "--config", "pocket", "--set", "ppo.steps=0"]) == 2
    assert "--set ppo.steps: Input should be greater than or equal to 1" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["optimize", "bench", "judge", "train", "tasks compose", "tasks filter"])
def test_help_names_file_bounds_and_defaults(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--config" in shown and "PydanticUndefined" not in shown


def test_a_command_with_a_file_of_its_own_gets_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--config` of `tasks build` is no file of the command's options."""
    (tmp_path / "build.yaml").write_text("folder: a\nagainst: [b]\nsed: 1\n")
    assert run(["tasks", "build", "--config", str(tmp_path / "build.yaml")]) == 2
    assert "Did you mean 'seed'" in capsys.readouterr().err


def test_help_comes_from_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for part in ("[x>=1]", "auto|cuda|cpu", "settled|decided", "(2.0)", "(decided)", "Maximum time of one profile's"):
        assert part in words, part


def test_the_file_of_the_documentation(parsed: Parsed) -> None:
    page = (Path(__file__).parents[3] / "docs" / "runs.md").read_text()
    Path("run.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    options = parsed(OptimizeOptions, "--device", "cpu", file="run.toml")
    assert (options.limits.turns, options.judge.timing_budget_s) == (120, 5)
